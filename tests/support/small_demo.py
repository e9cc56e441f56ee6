"""What the tests of shortened demos share."""

from __future__ import annotations

from pathlib import Path

from tests.support.forked import Forked, run_module
from tests.support.places import REPO


def shortened(name: str, folder: Path, values: dict[str, int]) -> str:
    """A copy of a recipe with some values replaced."""
    lines = (REPO / "recipes" / name).read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.split(":")[0] not in values]
    path = folder / Path(name).name
    path.write_text(
        "\n".join([*kept, *(f"{key}: {value}" for key, value in values.items())]), encoding="utf-8"
    )
    return str(path)


def launched(module: str, words: list[str], *_, **__) -> int:
    """Train in a process of its own, which accelerate's launcher has not started."""
    process = Forked(run_module, module, *words)
    code = process.wait()
    print(process.printed)
    return code
