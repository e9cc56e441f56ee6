"""The report: parts in `data/`, data compressed beside them, and a policy that lets nothing else run and nothing out.

What a model wrote is untrusted. It lies in the page as base64 of gzip, in which no tag can be spelt; the page's scripts show it
as text nodes only; and the Content-Security-Policy names the scripts by their hashes, so that nothing else would run.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from grpo_ext.common.files import write_atomically
from grpo_ext.observe.jsonl import finite, parts
from grpo_ext.observe.panels import more_panels, panels
from grpo_ext.observe.plots import plot_runs
from grpo_ext.observe.read_run import RunData, distinct, find_folder, read_run, short_name
from grpo_ext.observe.report.columns import CHUNK, sample_columns, sample_texts
from grpo_ext.observe.run_log import METRICS, SAMPLES

SCRIPTS = ("store.js", "charts.js", "completions.js", "conversation.js", "detail.js", "pairs.js", "main.js")


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


def build_page(runs: list[RunData], renew_seconds: float | None = None) -> str:
    """The report of runs as HTML; with `renew_seconds` the page loads itself again after so many seconds."""
    blocks = dict(data_blocks(runs, renew_seconds))
    script = "\n".join(part(name) for name in SCRIPTS)
    scripts = f"{source_hash(script)} {source_hash(plotly_script())}"
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
    data = "\n".join(f'<script type="text/plain" id="{name}">{block}</script>' for name, block in blocks.items())
    fill = {
        "POLICY": html.escape(policy, quote=True).replace("&#x27;", "'"),
        "TITLE": html.escape(", ".join(run.name for run in runs)),
        "STYLE": part("page.css"),
        "DATA": data,
        "SCRIPT": f"<script>{script}</script>",
    }
    before, *rest = part("page.html").split("{{")
    return before + "".join(fill[piece.partition("}}")[0]] + piece.partition("}}")[2] for piece in rest)


def data_blocks(runs: list[RunData], renew_seconds: float | None) -> Iterator[tuple[str, str]]:
    """Id and content of each block: `plotly`, `runs`, and for the i-th run `index-i`, `prompts-i`, `texts-i-0`, ..."""
    yield "plotly", packed_plotly()
    yield "runs", packed({"renew": renew_seconds, "made": time.time(), "runs": [about(run) for run in runs]})
    for i, run in enumerate(runs):
        index, prompts = sample_columns(run)
        yield f"index-{i}", packed(index)
        yield f"prompts-{i}", packed(prompts)
        for j in range(0, len(run.samples), CHUNK):
            yield f"texts-{i}-{j // CHUNK}", packed(sample_texts(run.samples[j : j + CHUNK], run.rewards))


def about(run: RunData) -> dict[str, Any]:
    """Everything of a run but its completions."""
    return {
        "name": run.name,
        "folder": str(run.folder),
        **{
            kind: [{**asdict(panel), "words": panel.in_words} for panel in found]
            for kind, found in (("panels", panels(run)), ("more", more_panels(run)))
        },
        **{name: getattr(run, name) for name in ("recipe", "about", "alarms", "rewards", "outcome", "faults")},
        "passThreshold": run.pass_threshold,
        "samples": len(run.samples),
        "totalSamples": run.total_samples,
        "chunk": CHUNK,
    }


def packed(value: Any) -> str:
    """JSON as gzip as base64. Lone surrogates become their JSON escapes."""
    text = json.dumps(finite(value, "", {}), ensure_ascii=False, separators=(",", ":"))
    squeezed = gzip.compress(text.encode("utf-8", "backslashreplace"), compresslevel=6, mtime=0)
    return base64.b64encode(squeezed).decode("ascii")


def part(name: str) -> str:
    """A file of the page."""
    return resources.files("grpo_ext.observe.report").joinpath("data", name).read_text(encoding="utf-8")


def source_hash(script: str) -> str:
    """A script as the policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def plotly_script() -> str:
    """plotly.js as its Python package brings it."""
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


@cache
def packed_plotly() -> str:
    return packed(plotly_script())
