"""The report's files: page, and picture of the curves; once, or again and again as a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from grpo_ext.common.files import write_atomically
from grpo_ext.observe.jsonl import parts
from grpo_ext.observe.plots import plot_runs
from grpo_ext.observe.read_run import RunData, distinct, find_folder, read_run, short_name
from grpo_ext.observe.report.page import build_page
from grpo_ext.observe.run_log import METRICS, SAMPLES


def write_report(
    paths: list[Path], page: Path, picture: Path | None = None, max_samples: int = 50_000, renew: float | None = None
) -> list[RunData]:
    """Write the page of these runs, about `max_samples` completions in it, and a picture, whose ending says its format.

    The open page loads itself again after `renew` seconds.
    """
    names = distinct([short_name(find_folder(path)) for path in paths])
    runs = [read_run(path, name, max_samples // len(paths)) for path, name in zip(paths, names, strict=True)]
    write_atomically(page, build_page(runs, renew))
    if picture is not None:
        plot_runs(runs, picture)
    return runs


def watch(paths: list[Path], seconds: float, write: Callable[[], None]) -> None:
    """Call `write` now, and again whenever a log has grown, until it is interrupted."""
    seen: list[tuple[str, int]] | None = None
    while True:
        logs = [find_folder(path) / name for path in paths for name in (METRICS, SAMPLES)]
        now = [(str(part), part.stat().st_size) for log in logs for part in parts(log)]
        if now != seen:
            seen = now
            write()
        time.sleep(seconds)
