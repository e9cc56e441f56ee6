"""Whole checkpoints told from others: a manifest with the size and hash of every file, written last."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from grpo_ext.common.files import write_atomically

MANIFEST = "manifest.json"
STATE = "grpo_state_{}.pt"  # what a rank knows beside what transformers saves
logger = logging.getLogger(__name__)


def write_manifest(folder: Path) -> None:
    """Note the size and hash of every file of a checkpoint, after they have reached the disk."""
    files = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != MANIFEST}
    for path in files.values():
        flush(path)
    hashes = _hashes(files.values())
    noted = {name: {"size": p.stat().st_size, "sha256": h} for (name, p), h in zip(files.items(), hashes, strict=True)}
    write_atomically(folder / MANIFEST, json.dumps(noted, indent=1) + "\n")
    for path in (folder / MANIFEST, folder, folder.parent):
        flush(path)


def what_is_wrong(folder: Path) -> str | None:
    """What keeps a checkpoint from being used; `None` where it is whole."""
    try:
        noted = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "it was not written to its end"
    except ValueError:
        return f"its {MANIFEST} is damaged"
    for name, entry in noted.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if (folder / name).stat().st_size != entry["size"]:
            return f"{name} is damaged"
    hashes = _hashes(folder / name for name in noted)
    return next(
        (f"{name} is damaged" for name, h in zip(noted, hashes, strict=True) if h != noted[name]["sha256"]), None
    )


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, whole or not, oldest first."""
    found = [path for path in run.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.name.rpartition("-")[2].isdigit()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def newest_whole(run: Path, before: float = float("inf")) -> str | None:
    """The newest checkpoint of a run that is whole, of step `before` at most; those passed over as damaged are told."""
    for folder in reversed(checkpoints(run)):
        if step_of(folder) > before:
            continue
        wrong = what_is_wrong(folder)
        if wrong is None:
            return str(folder)
        logger.warning(f"{folder} is passed over: {wrong}.")
    return None


def made_here(folder: Path) -> bool:
    """Whether a checkpoint was begun by this package's trainer, rather than by plain transformers or TRL."""
    return (folder / MANIFEST).exists() or any(folder.glob(STATE.format("*")))


def flush(path: Path) -> None:
    """Have a file, or a folder's list of files, reach the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _hashes(paths: Iterable[Path]) -> list[str]:
    """SHA-256 of files, several at a time: a large model lies in many, and hashing takes a processor each."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(_hash, paths))


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
