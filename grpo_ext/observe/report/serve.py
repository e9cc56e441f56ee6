"""Serve the live report at 127.0.0.1: the page, and the lines logged since the last request.

The server answers only GET requests for the page and its data, and only if the Host header names
this server. Otherwise, another website could read the data through a host name that resolves to
127.0.0.1.

The server keeps no log data between requests. The page requests the lines of a log from a byte
offset on, and receives about `SLICE` bytes, up to the end of a step. Each request starts at the
last step that the page has, and the response replaces that step, because it may have been
incomplete. If no line of that step begins at the offset any more, for example after the run was
resumed, the response starts at 0.
"""

import re
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl

from grpo_ext.common.foreign_files import size_of
from grpo_ext.observe.changes import changes
from grpo_ext.observe.jsonl import parts, placed
from grpo_ext.observe.log_files import INDEXED, METRICS, RUN, SAMPLE, SAMPLES
from grpo_ext.observe.panels import rewards
from grpo_ext.observe.read_run import (
    MOST_METRICS,
    MOST_REWARDS,
    FirstNames,
    RunData,
    read_metrics,
    reward_curves,
    without_logs,
)
from grpo_ext.observe.report.columns import Explainer, sample_columns, sample_texts
from grpo_ext.observe.report.page import about, as_json, build_page, logged
from grpo_ext.observe.run_folders import is_running, runs_in, unique_names

PORT = 8787
SLICE = 4 * 2**20  # approximate size of the part of a log in one response, in bytes
MOST_TEXTS = 50
MOST_RUNS = 500
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


class ReportServer(ThreadingHTTPServer):
    """HTTP server for the live report on the runs in some folders, including runs added later.

    The constructor binds the port; call `serve_forever` to answer requests at `url`.

    Args:
        paths: folders of runs, or folders with runs in their subfolders.
        port: the port on 127.0.0.1; if it cannot be used, a free one is chosen.
        most: the approximate number of newest completions that the page keeps.
        renew: the seconds between the requests of the page.
    """

    daemon_threads = True

    def __init__(
        self,
        paths: list[Path],
        port: int = PORT,
        most: int = 50_000,
        renew: float = 2.0,
    ):
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError:
            super().__init__(("127.0.0.1", 0), Handler)
        self.paths = paths
        self.page = build_page([], renew, most).encode()
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.hosts = (f"127.0.0.1:{self.server_port}", f"localhost:{self.server_port}")
        self.folders: list[Path] = []  # the folders of the runs, indexed by run number
        # One response is computed at a time, so that memory use does not grow with open pages.
        self.turn = Lock()

    def answer(self, path: str, query: dict[str, int]) -> Any:
        """Return the data for a request, to be sent as JSON.

        Args:
            path: the path of the URL, such as `/runs` or `/metrics/0`.
            query: the query parameters of the URL.

        Raises:
            LookupError: if the path or the run does not exist, or if the query lacks a key.
            OSError: if a folder cannot be read or has too many entries.
        """
        if path == "/runs":
            return self.states()
        match = re.fullmatch(r"/(about|changes|metrics|samples|texts)/(\d{1,6})", path)
        if match is None:
            raise LookupError(path)
        kind = match[1]
        run = without_logs(self.folders[int(match[2])])
        if kind == "about":
            return about(run)
        if kind == "changes":
            run.metrics = read_metrics(run)
            return changes(run)
        if kind == "texts":
            return texts(run, query["start"], query["stop"])
        return since(run, kind == "samples", query["start"], query["step"])

    def states(self) -> list[dict[str, Any]]:
        """Look for new runs and return the `state` of every run.

        The index of a run in the list, which later requests use as its number, never changes. Once
        there are `MOST_RUNS` runs, further ones are ignored.
        """
        for path in self.paths:
            for folder in runs_in(path):
                if folder not in self.folders and len(self.folders) < MOST_RUNS:
                    self.folders.append(folder)
        states = []
        for folder, name in unique_names(self.folders).items():
            states.append(state(folder, name))
        return states


def state(folder: Path, name: str) -> dict[str, Any]:
    """Return a run's `name`, whether it is `running`, and the sizes of its files in bytes.

    The keys of the sizes are `about` (for `run.json`), `metrics` and `samples`. The sizes are 0 if
    the folder cannot be read.
    """
    sizes = {"about": 0, "metrics": 0, "samples": 0}
    running = False
    with suppress(OSError):
        running = is_running(folder)
        sizes = {
            "about": size(folder / RUN),
            "metrics": size(folder / METRICS),
            "samples": size(folder / SAMPLES),
        }
    return {"name": name, "running": running, **sizes}


def since(
    run: RunData,
    completions: bool,
    start: int,
    step: int,
) -> dict[str, Any]:
    """Return the part of a log that begins at `start`, and where the next request should continue.

    The part has about `SLICE` bytes, and ends with the last row of a step or of the log.

    Args:
        run: the run; the rows are stored in its `metrics` or `samples`.
        completions: whether to read the completions instead of the metrics.
        start: the byte offset to read from; replaced by 0 if no line of `step` begins there.
        step: the step of the line at `start`.

    Returns:
        A mapping with these keys:

        - `start` and `stop`: the byte offsets between which rows were read.
        - `next`: the `start` and `step` for the next request.
        - `faults`: sentences about what could not be read.
        - for metrics, the keys of `logged`; for completions, `panels` (the reward curves) and
          `index` (from `sample_columns`, with the added keys `place`, the byte offset of each
          completion, and `prompts`, the prompt ids).
    """
    log = run.folder / METRICS
    fields = None
    names = FirstNames("metrics", MOST_METRICS)
    if completions:
        log = run.folder / SAMPLES
        fields = SAMPLE
        names = FirstNames("rewards", MOST_REWARDS)
    stop = size(log)
    if start:
        first_line = next(placed(log, fields, [], start), None)
        if first_line is None or first_line[1]["step"] != step:
            start = 0
    rows: list[dict[str, Any]] = []
    last_step_start = start
    for place, row in placed(log, fields, run.faults, start):
        if not rows or row["step"] != rows[-1]["step"]:
            last_step_start = place
            step = row["step"]
            if rows and place - start > SLICE:
                stop = place
                break
        if not completions:
            rows.append(names.keep(row))
            continue
        short = {key: row[key] for key in (*SAMPLE, *INDEXED) if key in row}
        short |= {"step": step, "place": place, "text": "", "prompt": ""}
        short["rewards"] = names.keep(row["rewards"])
        rows.append(short)
    run.faults += names.faults()
    answer = {
        "start": start,
        "stop": stop,
        "next": {"start": last_step_start, "step": step},
        "faults": run.faults,
    }
    if not completions:
        run.metrics = rows
        return {**answer, **logged(run, is_whole=False)}
    run.curves = reward_curves(rows)
    run.samples = rows
    index, prompts = sample_columns(run)
    index["place"] = [row["place"] for row in rows]
    index["prompts"] = [prompt_id for prompt_id, _ in prompts]
    shown_panels = []
    for panel in rewards(run, {}):
        if panel.series:
            shown_panels.append(asdict(panel))
    return {**answer, "panels": shown_panels, "index": index}


def texts(run: RunData, start: int, stop: int) -> list[Any]:
    """Return `[position, prompt, *entry]` for each completion between two byte offsets in the log.

    `entry` is the completion's entry from `sample_texts`. At most `MOST_TEXTS` completions are
    returned.

    Args:
        run: the run that the completions belong to.
        start: the byte offset of the first completion.
        stop: the byte offset to stop at; completions that begin there or later are not returned.
    """
    explainer = Explainer(run.rewards)
    completions = []
    lines = placed(run.folder / SAMPLES, SAMPLE, [], start)
    for place, row in islice(lines, MOST_TEXTS):
        if place >= stop:
            break
        [entry] = sample_texts([row], explainer)
        completions.append([place, row["prompt"], *entry])
    return completions


def size(log: Path) -> int:
    """Return the size of a file in bytes or, for a log, the size of all its parts together."""
    return sum(size_of(part, log.parent) for part in parts(log))


class Handler(BaseHTTPRequestHandler):
    """Answers one HTTP request to a `ReportServer`."""

    server: ReportServer
    timeout = 30  # seconds to wait for data
    server_version = "grpo_ext"
    sys_version = ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            return self.send_error(403)
        path, _, query_text = self.path.partition("?")
        content_type = "text/html"
        body = self.server.page
        if path != "/":
            try:
                with self.server.turn:
                    query = {}
                    for key, number in parse_qsl(query_text):
                        query[key] = int(number)
                    content_type = "application/json"
                    body = as_json(self.server.answer(path, query))
            except (LookupError, ValueError, OSError):
                return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Type", f"{content_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, header in HEADERS.items():
            self.send_header(name, header)
        self.end_headers()
        with suppress(ConnectionError):  # the page may have been closed
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing, because a page sends a request every few seconds."""
