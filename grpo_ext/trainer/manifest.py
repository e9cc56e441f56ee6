"""Detect incomplete or damaged checkpoints with a manifest of sizes and hashes, written last."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grpo_ext.common.files import checkpoints, step_of, write_atomically
from grpo_ext.common.foreign_files import (
    leads_out,
    open_plain,
    read_text,
    special_file,
)
from grpo_ext.common.untrusted import one_line

MANIFEST = "manifest.json"
STATE = "grpo_state_{}.pt"  # the part of a rank's state that transformers does not save
logger = logging.getLogger(__name__)


def write_manifest(folder: Path) -> None:
    """Write a manifest with the size and hash of every file of a checkpoint.

    The files are first flushed to disk, and the manifest is flushed after them.
    """
    files = {
        str(p.relative_to(folder)): p
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != MANIFEST
    }
    for path in files.values():
        flush(path)
    hashes = _hashes(files.values(), folder)
    entries = {
        name: {"size": p.stat().st_size, "sha256": h}
        for (name, p), h in zip(files.items(), hashes, strict=True)
    }
    write_atomically(folder / MANIFEST, json.dumps(entries, indent=1) + "\n")
    for path in (folder / MANIFEST, folder, folder.parent):
        flush(path)


def what_is_wrong(folder: Path) -> str | None:
    """Return why a checkpoint cannot be used, or `None` if it is complete and undamaged."""
    if not folder.is_dir():
        return "the folder does not exist"
    try:
        special = special_file(folder)
        if special:
            return f"{one_line(special.name)} is a FIFO, a device or a socket, not a plain file"
        entries = read_manifest(folder / MANIFEST)
        for name, (size, _) in entries.items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if leads_out(folder / name, folder):
                return f"{name} is a link to a file outside the checkpoint"
            if (folder / name).stat().st_size != size:
                return f"{name} is damaged"
        hashes = _hashes((folder / name for name in entries), folder)
    except FileNotFoundError:
        return f"it is incomplete, or was not saved by this package (it has no {MANIFEST})"
    except (ValueError, RecursionError):
        return f"its {MANIFEST} is damaged"
    except OSError as error:
        return f"it cannot be read ({error})"
    for (name, (_, expected)), actual in zip(entries.items(), hashes, strict=True):
        if actual != expected:
            return f"{name} is damaged"
    return None


def read_manifest(path: Path) -> dict[str, tuple[int, str]]:
    """Read a manifest, and return the size and SHA-256 of each file, by file name.

    Raises:
        ValueError: if the manifest is invalid (`RecursionError` if it is nested too deeply).
        OSError: if it does not exist, cannot be read, or is a link to a file outside its folder.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name occurs twice")
        return dict(pairs)

    entries = json.loads(read_text(path, within=path.parent), object_pairs_hook=once)
    if not isinstance(entries, dict) or not entries:
        raise ValueError("the manifest lists no files")
    for name, entry in entries.items():
        if (
            not name.isprintable()
            or Path(name).is_absolute()
            or ".." in Path(name).parts
            or not isinstance(entry, dict)
            or entry.keys() != {"size", "sha256"}
        ):
            raise ValueError("an entry does not describe a file")
    return {name: (entry["size"], entry["sha256"]) for name, entry in entries.items()}


def delete_older(newest: Path, most: int | None, best: str | None) -> None:
    """Delete checkpoints until at most `most` remain, but never the newest or the best.

    Checkpoints of steps after `newest` are left over from before a restart, and are deleted first;
    then the oldest ones are deleted. File times are not used.

    Args:
        newest: the checkpoint that was just written; the others are in the same folder.
        most: the number of checkpoints to keep, including `newest` and `best`; `None` or 0 to keep
            all.
        best: the checkpoint with the best metric; `None` or "" if there is none.
    """
    protected = {newest.resolve()}
    if best:
        protected.add(Path(best).resolve())
    folders = sorted(
        checkpoints(newest.parent),
        key=lambda path: (step_of(path) <= step_of(newest), step_of(path)),
    )
    surplus = max(0, len(folders) - most) if most else 0
    deletable = [folder for folder in folders if folder.resolve() not in protected]
    for folder in deletable[:surplus]:
        shutil.rmtree(folder, ignore_errors=True)


def newest_whole(run: Path) -> str | None:
    """Return the newest complete checkpoint of a run, or `None` if there is none.

    Newer checkpoints that are incomplete or damaged are skipped with a warning.
    """
    for folder in reversed(checkpoints(run)):
        fault = what_is_wrong(folder)
        if fault is None:
            return str(folder)
        logger.warning(f"{folder} is skipped: {fault}.")
    return None


def flush(path: Path) -> None:
    """Flush a file, or the directory entries of a folder, to disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _hashes(paths: Iterable[Path], folder: Path) -> list[str]:
    """Return the SHA-256 of each file.

    The files are hashed in parallel, because hashing one file uses only one core. If a file is
    outside `folder`, `OSError` is raised.
    """
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(lambda path: _hash(path, folder), paths))


def _hash(path: Path, folder: Path) -> str:
    with open_plain(path, folder) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
