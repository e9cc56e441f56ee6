"""Build the report page: one HTML file with styles, scripts and the compressed data of runs.

Text written by a model is untrusted. The page contains such text as base64-encoded gzip, which
cannot contain a tag, and the scripts show it only as text nodes. The Content-Security-Policy of the
page allows only its own script, by hash, and no requests except from a live page to its server.
"""

import base64
import gzip
import hashlib
import html
import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from grpo_ext.common.files import write_atomically
from grpo_ext.common.foreign_files import open_plain
from grpo_ext.observe.changes import changes
from grpo_ext.observe.jsonl import finite
from grpo_ext.observe.panels import by_metric, more_panels, panels, series
from grpo_ext.observe.plots import plot_runs
from grpo_ext.observe.read_run import RunData, read_run
from grpo_ext.observe.report.columns import CHUNK, Explainer, sample_columns, sample_texts
from grpo_ext.observe.run_folders import find_folder, is_running, runs_in, unique_names
from grpo_ext.observe.suite_table import suite_table

STYLES = ("page.css", "figures.css", "explorer.css", "paper.css")
SCRIPTS = (
    "elements.js", "curves.js", "rows.js", "store.js", "headline.js", "sparkline.js", "chart.js",
    "panels.js", "phases.js", "runs.js", "suites.js", "completions.js", "filters.js",
    "histogram.js", "distribution.js", "conversation.js", "tokens.js", "detail.js", "group.js",
    "changes.js", "pairs.js", "recipe.js", "main.js",
)  # fmt: skip
MOST_NOTE = 2000  # maximum number of characters of `notes.md` to show
LIVE = "live.js"  # the only script that makes requests, included only in pages from a server


def write_report(
    paths: list[Path],
    page: Path,
    picture: Path | None = None,
    max_samples: int = 50_000,
) -> list[RunData]:
    """Write the report page for the runs in `paths`, and return the runs.

    Args:
        paths: folders of runs, or folders with runs in their subfolders.
        page: the HTML file to write.
        picture: an image file in which to draw the curves; its suffix determines the format. `None`
            draws no image.
        max_samples: the maximum number of completions in the page, divided equally among the runs.

    Raises:
        FileNotFoundError: if one of the paths contains no run.
        OSError: if a folder cannot be read, or a file cannot be written.
        ValueError: if matplotlib does not support the format of `picture`.
    """
    folders: list[Path] = []
    for path in paths:
        folders += runs_in(path) or [find_folder(path)]
    folders = list(dict.fromkeys(folders))  # two paths may lead to the same run
    runs = [
        read_run(path, name, max_samples // len(folders))
        for path, name in unique_names(folders).items()
    ]
    write_atomically(page, build_page(runs))
    if picture is not None:
        plot_runs(runs, picture)
    return runs


def build_page(
    runs: list[RunData],
    renew: float | None = None,
    most: int = 0,
) -> str:
    """Return the report page as HTML.

    Sentences about explanations that take too long, and about benchmark results that cannot be
    read or are left out, are added to the `faults` of the runs.

    Args:
        runs: the runs to show; empty for a live page, which gets its data from the server.
        renew: the seconds between the requests of a live page; `None` for a page without a server.
        most: the approximate number of newest completions that a live page keeps.
    """
    script_names = [*SCRIPTS, LIVE] if renew else SCRIPTS
    script = "\n".join(map(data_text, script_names))
    text_blocks = dict(texts(runs))  # before `about`, because it may add to `faults`
    run_entries = []
    for run in runs:
        run_entries.append(
            {
                **about(run),
                "changes": changes(run),
                "samples": len(run.samples),
                "totalSamples": run.total_samples,
                "logged": logged(run),
            }
        )
    page_data = {
        "renew": renew,
        "most": most,
        "made": time.time(),
        "runs": run_entries,
    }
    blocks = {"runs": packed(page_data), **text_blocks}
    block_elements = []
    for name, block in blocks.items():
        block_elements.append(f'<script type="text/plain" id="{name}">{block}</script>')
    connections = "connect-src 'self'; " if renew else ""
    digest = hashlib.sha256(script.encode()).digest()
    script_hash = base64.b64encode(digest).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'unsafe-inline'; "
        f"{connections}img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    run_names = ", ".join(run.name for run in runs)
    fields = {
        "POLICY": policy,
        "TITLE": html.escape(run_names or "grpo_ext"),
        "STYLE": "\n".join(map(data_text, STYLES)),
        "DATA": "\n".join(block_elements),
        "SCRIPT": f"<script>{script}</script>",
    }
    template = data_text("page.html")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template)


def texts(runs: list[RunData]) -> Iterator[tuple[str, str]]:
    """Yield (id, packed content) for each data block of the page except the block `runs`.

    The blocks of run i are `index-i`, `prompts-i`, `texts-i-0`, `texts-i-1`, and so on. Sentences
    about explanations that take too long are added to the `faults` of the run.
    """
    for i, run in enumerate(runs):
        index, prompts = sample_columns(run)
        yield f"index-{i}", packed(index)
        yield f"prompts-{i}", packed(prompts)
        explainer = Explainer(run.rewards, run.faults)
        for j in range(0, len(run.samples), CHUNK):
            chunk = sample_texts(run.samples[j : j + CHUNK], explainer)
            yield f"texts-{i}-{j // CHUNK}", packed(chunk)


def about(run: RunData) -> dict[str, Any]:
    """Return what the page shows about a run besides its logs, such as its name, recipe and notes.

    Sentences about benchmark results that cannot be read or are left out are added to `run.faults`.
    """
    note = ""
    with suppress(OSError), open_plain(run.folder / "notes.md", run.folder) as file:
        start_of_file = file.read(4 * MOST_NOTE)  # a character has at most 4 bytes
        note = start_of_file.decode(errors="replace")[:MOST_NOTE]
    return {
        "name": run.name,
        "folder": str(run.folder),
        "running": is_running(run.folder),
        "note": note,
        "recipe": run.recipe,
        "about": run.about,
        "rewards": run.rewards,
        "suite": suite_table(run.folder, run.faults),
        "faults": run.faults,
        "chunk": CHUNK,
    }


def logged(run: RunData, is_whole: bool = True) -> dict[str, Any]:
    """Return what the page shows of a run's metrics.

    Args:
        run: the run, with its metrics.
        is_whole: whether `run.metrics` covers the whole log, not only a part of it.

    Returns:
        A dict with the keys `panels` (from `panels`), `more` (from `more_panels`), `facts` (the
        curves of `time`, `num_tokens` and `train_runtime`, as far as they were logged) and `alarms`
        (the alarms, as logged).
    """
    columns = by_metric(run.metrics)
    facts = []
    for key in ("time", "num_tokens", "train_runtime"):
        if key in columns:
            facts.append(asdict(series(key, columns[key])))
    alarms = []
    for row in run.metrics:
        if isinstance(row.get("alarm"), str):
            alarms.append(row)
    return {
        "panels": [asdict(panel) for panel in panels(run, is_whole)],
        "more": [asdict(panel) for panel in more_panels(run)],
        "facts": facts,
        "alarms": alarms,
    }


def packed(value: object) -> str:
    """Return a value as base64-encoded, gzip-compressed JSON."""
    compressed = gzip.compress(as_json(value), compresslevel=6, mtime=0)
    return base64.b64encode(compressed).decode("ascii")


def as_json(value: object) -> bytes:
    """Return a value as compact JSON in UTF-8; numbers that are not finite become null."""
    finite_value = finite(value, "", {})
    text = json.dumps(finite_value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def data_text(name: str) -> str:
    """Return the text of a file in this package's folder `data`."""
    folder = resources.files("grpo_ext.observe.report").joinpath("data")
    return folder.joinpath(name).read_text(encoding="utf-8")
