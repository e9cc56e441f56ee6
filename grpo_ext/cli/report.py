"""`grpo-ext report`: show curves and completions of runs in one HTML file, or on a live page.

examples:
  grpo-ext report runs/countdown-tiny                  write runs/countdown-tiny/report.html
  grpo-ext report runs/a runs/b --output compare.html  compare several runs
  grpo-ext report runs                                 show all runs in a folder
  grpo-ext report runs/a --png curves.png              also write the curves as an image
  grpo-ext report runs --serve                         show them live at http://127.0.0.1:8787

RUN is a run's output_dir, a demo's folder, or a folder of runs. The file needs no network and no
server. It shows curves, completions with the score of each reward, evaluations before and after
training, the recipe, and alarms. With --serve, the page is updated while runs continue.
"""

import argparse
import sys
from pathlib import Path

from grpo_ext.cli.command import add_command, at_least
from grpo_ext.common.termination import until_interrupted


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    add = add_command(subparsers, __doc__, run).add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, or folder of runs")
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="the HTML file (default: report.html in RUN, or in the current folder for several "
        "RUNs)",
    )
    add(
        "--png",
        type=Path,
        metavar="FILE",
        help="also write the curves to this .png, .pdf or .svg file",
    )
    add(
        "--max_completions",
        type=at_least(0),
        default=50_000,
        metavar="N",
        help="show about N completions: those of randomly chosen prompts, or with --serve the "
        "newest (default: 50000)",
    )
    add(
        "--serve",
        type=int,
        nargs="?",
        const=8787,
        metavar="PORT",
        help="serve the page at 127.0.0.1 until Ctrl-C instead of writing a file (default port: "
        "8787); if the port is taken, a free one is used",
    )


def run(args: argparse.Namespace) -> int:
    from grpo_ext.common.untrusted import one_line
    from grpo_ext.observe.run_folders import find_folder, runs_in

    for folder in args.runs:
        if not runs_in(folder):
            find_folder(folder)  # raises an error that says what is missing
    from grpo_ext.observe.report.page import write_report  # takes half a second

    if args.serve is not None:
        serve_report(args.runs, args.serve, args.max_completions)
        return 0
    page = args.output
    if page is None:
        folder = args.runs[0] if len(args.runs) == 1 else Path()
        page = folder / "report.html"
    runs = write_report(args.runs, page, args.png, args.max_completions)
    for run in runs:
        for fault in run.faults:
            print(f"Warning: {one_line(fault)}", file=sys.stderr)
    total = sum(run.total_samples for run in runs)
    shown = sum(len(run.samples) for run in runs)
    completions = f"{shown} of {total}" if shown < total else f"{shown}"
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, {completions} completions", flush=True)
    if args.png:
        print(args.png)
    return 0


def serve_report(folders: list[Path], port: int, max_completions: int) -> None:
    """Serve the live report of runs until Ctrl-C.

    Args:
        folders: folders of runs, or folders with runs in their subfolders.
        port: the port at 127.0.0.1; if it is taken, a free one is used.
        max_completions: the approximate number of newest completions on the page.
    """
    from grpo_ext.observe.report.serve import ReportServer

    with (
        ReportServer(folders, port, max_completions) as server,
        until_interrupted(),
    ):
        print(f"Serving the report at {server.url} (Ctrl-C ends it)", flush=True)
        server.serve_forever()
