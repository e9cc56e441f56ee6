"""`grpo-ext migrate`: convert the settings of a TRL, open-r1, ms-swift or verl run to a recipe.

examples:
  grpo-ext migrate recipes/Qwen2.5-1.5B-Instruct/grpo/config_demo.yaml
  grpo-ext migrate run_qwen3-8b.sh --output mine.yaml
  grpo-ext migrate grpo_7b.sh --num_processes 2 --output mine.yaml

FILE is a YAML file, or a shell script with `trl grpo ...`, `accelerate launch ...grpo.py ...`,
`swift rlhf ...` or `python -m verl.trainer.main_ppo ...`. A script is read but never run; variables
that it sets to literals are substituted. Each key that was translated only approximately or not at
all is named on the terminal and in a comment in the recipe, with what to set by hand. Batch sizes
are translated so that the completions per optimizer step and per generation stay the same, even
with another --num_processes.

exit codes: 0 written; 2 FILE cannot be read or has none of these settings, or --output already
exists
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from grpo_ext.cli.command import add_command, at_least
from grpo_ext.common.untrusted import printable


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, __doc__, run)
    parser.add_argument("file", metavar="FILE", help="a YAML file or a shell script")
    parser.add_argument(
        "--output", metavar="RECIPE", help="the recipe to write (default: print it)"
    )
    parser.add_argument(
        "--from",
        dest="project",
        metavar="PROJECT",
        help="trl, open-r1, ms-swift or verl (default: recognized from FILE)",
    )
    parser.add_argument(
        "--num_processes",
        type=at_least(1),
        metavar="N",
        help="number of training processes for the recipe (default: that of FILE)",
    )


def run(args: argparse.Namespace) -> int:
    from grpo_ext.common.files import write_atomically
    from grpo_ext.migrate.draft import Remark
    from grpo_ext.migrate.draft_check import problems_of, processes_by_default
    from grpo_ext.migrate.read_source import check_project, read_source
    from grpo_ext.migrate.recipe_text import recipe_text
    from grpo_ext.migrate.translate import translate

    if args.output and os.path.lexists(args.output):
        raise ValueError(f"{args.output} already exists. Use another name with --output.")
    project = None if args.project is None else check_project(args.project)
    source = read_source(Path(args.file), project)
    draft, batch = translate(source, args.num_processes)
    for problem in problems_of(draft, batch.num_processes):
        message = problem.message.removeprefix(f"{problem.key}: ")
        draft.remarks.append(Remark(message, problem.key))
    text = recipe_text(source, draft, batch)
    if args.output is None:
        print(printable(text), end="")
    else:
        write_atomically(Path(args.output), text)
    for remark in sorted(draft.remarks, key=lambda remark: not remark.by_hand):
        print(printable(str(remark)), file=sys.stderr)
    name = shlex.quote(args.output or "RECIPE")
    processes = ""
    if batch.num_processes != processes_by_default(draft):
        processes = f" --num_processes {batch.num_processes}"
    print(f"Next: grpo-ext check --config {name}{processes}", file=sys.stderr)
    return 0
