"""The two files of an evaluation: its figures, and the completions next to it."""

import os
from pathlib import Path


def completions_path(path: Path) -> Path:
    """Return the path of the file of completions that belongs to a file of figures."""
    return path.with_name(f"{path.stem}_completions.jsonl")


def check_output(path: Path) -> None:
    """Raise `ValueError` if one of the two files cannot be written, before anything is evaluated.

    Missing folders are created when the files are written.
    """
    if path.is_dir():
        raise ValueError(
            f"--output {path} is a folder: write the name of a file, such as {path / 'eval.json'}."
        )
    completions = completions_path(path)
    if completions.is_dir():
        raise ValueError(
            f"--output {path} also writes {completions}, which is a folder: write another name."
        )
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(
            f"--output {path} cannot be written, because {folder} is not a writable folder: choose "
            "a path in another folder."
        )
