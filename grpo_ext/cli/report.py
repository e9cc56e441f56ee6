"""`grpo-ext report`: curves and completions of runs as one HTML file.

examples:
  grpo-ext report runs/countdown-tiny                     writes runs/countdown-tiny/report.html
  grpo-ext report runs/a runs/b --output compare.html     several runs, overlaid and compared
  grpo-ext report runs/a --png curves.png                 also the curves as a picture (or .pdf, .svg)
  grpo-ext report runs/a --watch                          renews the page during the run, until Ctrl-C

RUN is a run's output_dir, or a demo's folder. The page needs no network and no server. It shows curves, completions with the
score of each reward, figures before and after, the recipe, and alarms.
"""

import argparse
import sys
from pathlib import Path

from grpo_ext.cli.command import add_command, at_least


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    add = add_command(subparsers, __doc__, run).add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    add("--output", type=Path, metavar="FILE", help="the page (default: report.html in the run; of several, here)")
    add("--png", type=Path, metavar="FILE", help="also write the curves as a picture")
    most = "about how many completions to show, of a share of the prompts (default 50000)"
    add("--max_completions", type=at_least(0), default=50_000, metavar="N", help=most)
    every = "renew the page every so many seconds (default 10) if there are new lines"
    add("--watch", type=at_least(0, float), nargs="?", const=10.0, metavar="SECONDS", help=every)


def run(args: argparse.Namespace) -> int:
    from grpo_ext.observe.report.page import watch, write_report

    page = args.output or (args.runs[0] if len(args.runs) == 1 else Path()) / "report.html"

    def write() -> None:
        runs = write_report(args.runs, page, args.png, args.max_completions, args.watch)
        shown, total = sum(len(run.samples) for run in runs), sum(run.total_samples for run in runs)
        of = f" of {total}" if shown < total else ""
        for fault in [fault for run in runs for fault in run.faults]:
            print(f"Not read: {fault}", file=sys.stderr)
        print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, {shown}{of} completions", flush=True)

    if args.watch:
        try:
            watch(args.runs, args.watch, write)
        except KeyboardInterrupt:
            return 0
    write()
    if args.png:
        print(args.png)
    return 0
