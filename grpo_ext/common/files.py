"""Files that are whole or not there, the package's own data, and the folders of checkpoints."""

import os
import re
from importlib import resources
from pathlib import Path

CHECKPOINT = re.compile("checkpoint-[0-9]{1,18}")


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` through a temporary file beside it, so that a stopped run leaves no half-written file.

    Lone surrogates, which a tokenizer can decode to and UTF-8 cannot hold, are written as backslash escapes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def data_lines(package: str, name: str) -> list[str]:
    """The lines of the file `name` in the folder `data` of a package, without comments."""
    text = resources.files(package).joinpath("data", name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def checkpoints(run: Path) -> list[Path]:
    """The folders `checkpoint-STEP` of a run, whole or not, by step; no other folder is one of them."""
    return sorted((path for path in run.glob("checkpoint-*") if CHECKPOINT.fullmatch(path.name)), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def in_bytes(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} GiB" if count < 1000 else f"{count:,.0f} GiB"
