"""Find the folders of runs, name the runs, and tell which are still in progress."""

import fcntl
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from grpo_ext.common.foreign_files import entries, leads_out, open_plain
from grpo_ext.observe.jsonl import parts
from grpo_ext.observe.log_files import METRICS

QUIET = 300.0  # a run without a lock counts as stopped after this many seconds without a new line


def runs_in(path: Path) -> list[Path]:
    """Return the folder of the run in `path` or, if there is none, of every run in its subfolders.

    The folder of a run is the one that contains its logs (see `run_folder`). Subfolders are
    searched in the order of their names. Symbolic links to places outside `path` are skipped,
    because the user did not name these places. Returns an empty list if there are no runs.

    Raises:
        OSError: if there is no run in `path` itself and its entries cannot be listed.
    """
    run = run_folder(path)
    if run is not None:
        return [run]
    if not path.is_dir():
        return []
    runs = []
    for folder in entries(path):
        if leads_out(folder, path):
            continue
        run = run_folder(folder)
        if run is not None:
            runs.append(run)
    return runs


def run_folder(path: Path) -> Path | None:
    """Return the first of `path` and `path/grpo` that has a run's logs; `None` if neither has."""
    for folder in (path, path / "grpo"):
        try:
            if not leads_out(folder, path) and parts(folder / METRICS):
                return folder
        except OSError:  # no permission, or too many entries
            continue
    return None


def find_folder(path: Path) -> Path:
    """Return the first of `path` and `path/grpo` that contains a run's logs.

    Raises:
        FileNotFoundError: if neither contains the logs of a run.
    """
    folder = run_folder(path)
    if folder is None:
        raise FileNotFoundError(
            f"{path} holds no run, because it has no readable {METRICS}. Pass the output_dir of a "
            "`grpo-ext train` run."
        )
    return folder


def short_name(folder: Path) -> str:
    """Return the name of a run's folder, or its parent's name if the folder is `grpo`."""
    if folder.name == "grpo" and folder.parent.name:
        return folder.parent.name
    return folder.resolve().name


def unique_names(folders: list[Path]) -> dict[Path, str]:
    """Return the name of each run, by folder; names that occur several times get a number."""
    short_names = list(map(short_name, folders))
    totals = Counter(short_names)
    numbers: Counter[str] = Counter()
    names = {}
    for folder, name in zip(folders, short_names, strict=True):
        numbers[name] += 1
        names[folder] = f"{name} ({numbers[name]})" if totals[name] > 1 else name
    return names


def is_running(folder: Path) -> bool:
    """Return whether a run is in progress, which means that a process holds the folder's lock.

    If the folder has no readable lock file, for example because the run was started from Python,
    the run counts as in progress if its metrics were written in the last `QUIET` seconds.
    """
    try:
        with open_plain(folder / ".lock", folder) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        with suppress(OSError):  # the log may have been moved just now
            for part in parts(folder / METRICS):
                age = time.time() - part.stat().st_mtime
                if age < QUIET:
                    return True
    return False
