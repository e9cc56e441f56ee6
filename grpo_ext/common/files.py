"""Write files atomically, read the package's data files, list checkpoints, and format sizes."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, TextIO

from grpo_ext.common.foreign_files import entries

CHECKPOINT = re.compile("checkpoint-[0-9]{1,18}")


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, or leave `path` unchanged if an error occurs.

    Missing parent folders are created. Characters that UTF-8 cannot encode become backslash
    escapes.
    """
    with replacing(path) as file:
        file.write(text)


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Context manager that opens a temporary text file and moves it to `path` at the end.

    If the block raises an error, the temporary file is deleted, and `path` is unchanged. Missing
    parent folders are created. The file is UTF-8; lone surrogates, which tokenizers can produce and
    UTF-8 cannot encode, become backslash escapes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # left by a killed process, or a link planted by someone else
    try:
        with open(temporary, "x", encoding="utf-8", errors="backslashreplace") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def data_lines(package: str, name: str) -> list[str]:
    """Return the lines of a package's file `data/NAME`, except those that begin with `#`."""
    text = resources.files(package).joinpath("data", name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def data_yaml(package: str, name: str) -> Any:
    """Parse a package's YAML file `data/NAME` and return its content."""
    import yaml  # imported here, because many commands read no YAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # written in C and 30 times as fast
    text = "\n".join(data_lines(package, name))
    return yaml.load(text, Loader=loader)


def checkpoints(run: Path) -> list[Path]:
    """Return the paths named `checkpoint-STEP` in a run's folder, sorted by step.

    Incomplete checkpoints are included. The list is empty if `run` does not exist or is not a
    folder.

    Raises:
        OSError: if the folder cannot be read or has too many entries.
    """
    try:
        inside = entries(run)
    except (FileNotFoundError, NotADirectoryError):
        return []
    folders = [path for path in inside if CHECKPOINT.fullmatch(path.name)]
    return sorted(folders, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the step in the name of a folder `checkpoint-STEP`."""
    return int(checkpoint.name.rpartition("-")[2])


def in_bytes(count: float) -> str:
    """Format a number of bytes with a unit from B to GiB, such as `1.5 MiB`."""
    units = ["B", "KiB", "MiB", "GiB"]
    while count >= 1023.5 and len(units) > 1:
        count /= 1024
        units.pop(0)
    digits = f"{count:.3g}" if count < 999.5 else f"{count:,.0f}"
    return f"{digits} {units[0]}"
