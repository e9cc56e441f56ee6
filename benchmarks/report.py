"""Does the report open fast, send no requests, and show model output as text?

    python -m benchmarks.report [--quick] [--check]
    python -m benchmarks.report --pictures DIR [--run RUN]

Opens a report of 50,000 completions (5,000 with `--quick`) in headless Chromium, which takes about
two minutes. `--check` exits with 1 unless every figure is within its bound. `--pictures` writes
pictures of the page: on a desktop, on a phone, in dark mode, and as printed.

1. Opening: the page is usable within 2 s of the navigation. The time until its curves are drawn is
   also measured.
2. The page contains only visible rows: fewer than 100.
3. The only request is for the page itself, there are no script errors, and a completion that is a
   script tag is shown as text.
4. The page can be used with the keyboard.
5. Logging: writing the lines of a step, 256 completions of 500 characters, takes less than 20 ms (2
   % of a step of 1 s).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from grpo_ext.observe.jsonl import JsonLines
from grpo_ext.observe.report.page import write_report
from tests.support.browser import Browser, find_browser

READY = (
    "new Promise((done) => { const timer = setInterval(() => { const { ready, curves } = "
    "document.documentElement.dataset; "
    "if (curves) { clearInterval(timer); done([ready / 1000, curves / 1000]); } }, 5); })"
)
HOSTILE = (
    "<script>document.title = 'owned'</script><img src=https://example.org/x "
    "onerror=\"document.title='owned'\">"
)


def made_up_run(folder: Path, count: int, seed: int = 0) -> float:
    """Write logs of `count` completions of 500 characters; return the seconds per step of 256."""
    rng = random.Random(seed)
    samples = JsonLines(folder / "samples.jsonl")
    metrics = JsonLines(folder / "metrics.jsonl")
    seconds = []
    for step in range(1, count // 256 + 2):
        rows = [completion(step, i, rng) for i in range(min(256, count - (step - 1) * 256))]
        start = time.perf_counter()
        samples.append(rows)
        logged = {f"metric/{i}": rng.random() for i in range(20)}
        metrics.append(
            [
                {
                    "step": step,
                    "reward": step / count,
                    "entropy": rng.random(),
                    "grad_norm": 1.0,
                    **logged,
                }
            ]
        )
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def completion(step: int, i: int, rng: random.Random) -> dict[str, Any]:
    numbers = [rng.randint(1, 99) for _ in range(4)]
    tries = "; ".join(
        f"{rng.randint(1, 99)} + {rng.randint(1, 99)} = {rng.randint(1, 198)} no" for _ in range(22)
    )
    text = f"<think>\n{tries}\n</think>\n<answer>{' + '.join(map(str, numbers))}</answer>"
    problem = (step * 32 + i // 8) % 1000
    return {
        "step": step,
        "mode": "train",
        "dataset": "train",
        "prompt_id": f"{problem:012x}",
        "group": i // 8,
        "prompt": [
            {"role": "user", "content": f"Problem {problem}: use the numbers to make a target."}
        ],
        "text": HOSTILE if (step, i) == (1, 0) else text,
        "rewards": {"countdown": float(rng.random() < 0.5), "format": 1.0},
        "reward": rng.random(),
        "advantage": rng.gauss(0, 1),
        "finish_reason": "stop",
        "length": len(text) // 3,
        "columns": {"nums": numbers, "target": sum(numbers)},
    }


def open_page(page: Path, repeats: int) -> dict[str, Any]:
    """Return figures of the opened page, such as its seconds, rows, requests and errors."""
    seconds = []
    for _ in range(repeats):
        with Browser() as browser:
            browser.open(page)
            seconds.append(browser.run(READY))
            time.sleep(0.5)
            rows = browser.run("document.querySelectorAll('.row').length")
            shown = browser.run("document.querySelector('.completion').textContent")
            for key in "jjjk":
                browser.key(key)
            at = browser.run("document.querySelector('.row[aria-selected=true]').dataset.at")
            browser.run("scrollTo(0, document.body.scrollHeight)")
            time.sleep(0.5)
            title = browser.run("document.title")
            requests = [
                url
                for url in browser.requests
                if not url.startswith(("file:", "about:", "data:", "blob:"))
            ]
            errors = browser.errors
    return {
        "seconds": statistics.median(usable for usable, _ in seconds),
        "curves": statistics.median(c for _, c in seconds),
        "rows": rows,
        "requests": requests,
        "errors": errors,
        "text": shown == HOSTILE and title != "owned",
        "keys": at == "2",
    }


def take_pictures(page: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    looks: dict[str, dict[str, Any]] = {
        "desktop": {},
        "dark": {"dark": True},
        "phone": {"width": 390, "height": 844, "phone": True},
    }
    for look, settings in looks.items():
        with Browser(**settings) as browser:
            browser.open(page)
            browser.run(READY)
            for section in ("overview", "curves", "completions", "pairs", "recipe"):
                browser.run(f"document.getElementById('{section}').scrollIntoView()")
                time.sleep(1.5)
                browser.picture(folder / f"{look}-{section}.png")
            if look == "desktop":
                browser.pdf(folder / "printed.pdf")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--pictures", type=Path, metavar="DIR")
    parser.add_argument(
        "--run",
        type=Path,
        metavar="RUN",
        help="take the pictures of this run's report, not of a made-up one",
    )
    args = parser.parse_args()
    if find_browser() is None:
        print(
            "There is no Chromium on this machine; the page's own tests need none: pytest "
            "tests/observe."
        )
        return 1 if args.check else 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        page = folder / "report.html"
        if args.pictures:
            if args.run is None:
                made_up_run(folder, 5_000)
            write_report([args.run or folder], page)
            take_pictures(page, args.pictures)
            return 0
        count = 5_000 if args.quick else 50_000
        logging = made_up_run(folder, count)
        start = time.perf_counter()
        write_report([folder], page)
        made = time.perf_counter() - start
        size = page.stat().st_size / 1e6
        found = open_page(page, 1 if args.quick else 5)
    print(f"logging 256 completions: {logging * 1000:.1f} ms")
    print(
        f"{count} completions: page of {size:.1f} MB made in {made:.1f} s, opened in "
        f"{found['seconds']:.2f} s, "
        f"with curves in {found['curves']:.2f} s"
    )
    print(
        f"rows in the page: {found['rows']}; requests: {found['requests']}; errors: "
        f"{found['errors']}"
    )
    print(f"script tag stays text: {found['text']}; keys: {found['keys']}")
    good = (
        found["seconds"] < 2
        and found["rows"] < 100
        and not found["requests"]
        and not found["errors"]
    )
    good = good and found["text"] and found["keys"] and logging < 0.02
    return 0 if good or not args.check else 1


if __name__ == "__main__":
    sys.exit(main())
