"""The page of the report: the files in `data/` and the compressed data of the runs in one HTML file.

What a model wrote is untrusted. The page holds it as base64 of gzip, which cannot contain a tag. Its scripts show it only as
text nodes. Its Content-Security-Policy allows only these scripts, by their hashes, and no request.
"""

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
    """Write the page of these runs with about `max_samples` completions, and a picture, whose suffix says its format.

    The open page reloads itself every `renew` seconds; `None`: never.
    """
    names = distinct([short_name(find_folder(path)) for path in paths])
    runs = [read_run(path, name, max_samples // len(paths)) for path, name in zip(paths, names, strict=True)]
    write_atomically(page, build_page(runs, renew))
    if picture is not None:
        plot_runs(runs, picture)
    return runs


def watch(paths: list[Path], seconds: float, write: Callable[[], None]) -> None:
    """Call `write` now and whenever a log has grown, until interrupted; look every `seconds`."""
    seen: list[tuple[str, int]] | None = None
    while True:
        logs = [find_folder(path) / name for path in paths for name in (METRICS, SAMPLES)]
        now = [(str(part), part.stat().st_size) for log in logs for part in parts(log)]
        if now != seen:
            seen = now
            write()
        time.sleep(seconds)


def build_page(runs: list[RunData], renew_seconds: float | None = None) -> str:
    """Return the page as HTML; with `renew_seconds` it reloads itself."""
    blocks = dict(data_blocks(runs, renew_seconds))
    script = "\n".join(part(name) for name in SCRIPTS)
    scripts = f"{source_hash(script)} {source_hash(plotly()[0])}"
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
    data = "\n".join(f'<script type="text/plain" id="{name}">{block}</script>' for name, block in blocks.items())
    fill = {
        "POLICY": policy,
        "TITLE": html.escape(", ".join(run.name for run in runs)),
        "STYLE": part("page.css"),
        "DATA": data,
        "SCRIPT": f"<script>{script}</script>",
    }
    before, *rest = part("page.html").split("{{")
    return before + "".join(fill[piece.partition("}}")[0]] + piece.partition("}}")[2] for piece in rest)


def data_blocks(runs: list[RunData], renew_seconds: float | None) -> Iterator[tuple[str, str]]:
    """Yield id and content of each block: `plotly`, `runs`, and for the i-th run `index-i`, `prompts-i`, `texts-i-0`, ..."""
    yield "plotly", plotly()[1]
    yield "runs", packed({"renew": renew_seconds, "made": time.time(), "runs": [about(run) for run in runs]})
    for i, run in enumerate(runs):
        index, prompts = sample_columns(run)
        yield f"index-{i}", packed(index)
        yield f"prompts-{i}", packed(prompts)
        for j in range(0, len(run.samples), CHUNK):
            yield f"texts-{i}-{j // CHUNK}", packed(sample_texts(run.samples[j : j + CHUNK], run.rewards))


def about(run: RunData) -> dict[str, Any]:
    """Return what the page shows of a run except its completions."""
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
    """Return JSON, compressed by gzip, as base64. Lone surrogates become JSON escapes."""
    text = json.dumps(finite(value, "", {}), ensure_ascii=False, separators=(",", ":"))
    squeezed = gzip.compress(text.encode("utf-8", "backslashreplace"), compresslevel=6, mtime=0)
    return base64.b64encode(squeezed).decode("ascii")


def part(name: str) -> str:
    """Return the text of a file in `data/`."""
    return resources.files("grpo_ext.observe.report").joinpath("data", name).read_text(encoding="utf-8")


def source_hash(script: str) -> str:
    """Return the name of a script in the policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def plotly() -> tuple[str, str]:
    """Return plotly.js from its Python package, and the same packed."""
    script = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    return script, packed(script)
