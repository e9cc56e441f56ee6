"""Name and check the two output files of an evaluation: the metrics and the completions."""

import os
from pathlib import Path


def completions_path(path: Path) -> Path:
    """Return the path of the completions file, next to the metrics file `path`."""
    return path.with_name(f"{path.stem}_completions.jsonl")


def check_output(path: Path) -> None:
    """Raise `ValueError` if the metrics file `path` or its completions file cannot be written.

    Call this before anything is evaluated. Missing folders are allowed, because they are created
    when the files are written.
    """
    if path.is_dir():
        raise ValueError(
            f"--output {path} is a folder. Pass the path of a file, such as {path / 'eval.json'}."
        )
    completions = completions_path(path)
    if completions.is_dir():
        raise ValueError(
            f"with --output {path}, the completions would be written to {completions}, which is a "
            "folder. Choose another file."
        )
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(
            f"--output {path} cannot be written, because {folder} is not a writable folder. Choose "
            "a path in another folder."
        )
