"""`grpo-ext check`: find the faults of a recipe before a run.

examples:
  grpo-ext check --config recipes/countdown/tiny.yaml
  grpo-ext check --config recipes/countdown/qwen2.5-3b.yaml --num_processes 4 --elsewhere
  grpo-ext check --config mine.yaml --learning_rate 1e-5 --json

It loads no model and needs no GPU. It checks keys, types, ranges, contradictions and the batch; the first rows of the data,
with chat template, tools and tokenizer; environment and rewards on three made-up completions; the vLLM server; the disk. A
data set or model on a hub that cannot be reached is a problem, with --elsewhere a note.

exit codes: 0 the recipe is sound; 1 it is not; 2 there is no such recipe
"""

import argparse
import json
from typing import Any

from grpo_ext.cli.command import add_processes, add_recipe_command
from grpo_ext.common.files import in_bytes
from grpo_ext.common.modules import without_collector
from grpo_ext.common.untrusted import printable
from grpo_ext.recipe.problems import Findings


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_recipe_command(subparsers, __doc__, run)
    add_processes(parser)
    parser.add_argument(
        "--elsewhere",
        action="store_true",
        help="the run will be on another machine: do not check this one",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    with without_collector():
        from grpo_ext.preflight.check_recipe import check_recipe

    findings = check_recipe(args.config, args.overrides, args.num_processes, args.elsewhere)
    if args.json:
        print(json.dumps({"recipe": args.config, **findings.as_dict()}, indent=2))
    else:
        print_findings(findings, args.config)
    return 0 if findings.sound else 1


def print_findings(findings: Findings, name: str) -> None:
    """Print figures, notes, problems and the verdict."""
    figures = findings.figures
    if batch := figures.get("batch"):
        sizes = "{prompts} prompts, {completions} completions; an optimizer step: {step} completions".format(
            **batch
        )
        print(f"batch    a generation: {sizes}")
    for title, part in (("rows", "rows"), ("eval", "evaluation")):
        for sentence in figures.get(part, []):
            print(f"{title:8} {printable(sentence)}")
    if prompts := figures.get("prompts"):
        print_prompts(prompts)
    if figures.get("rewards"):
        print_rewards(figures["rewards"])
    for task, tried in figures.get("rewards_by_task", {}).items():
        print_rewards(tried, f" of the task {printable(task)}")
    if "server" in figures:
        print(f"server   {figures['server']}")
    if "disk" in figures:
        print(f"disk     {in_bytes(figures['disk']['free'])} free for output_dir")
    for title, found in (("note", findings.notes), ("PROBLEM", findings.problems)):
        for problem in found:
            print(printable(f"{title:8} {problem}"))
    count = len(findings.problems)
    print(
        f"{name}: " + ("sound" if findings.sound else f"{count} problem{'' if count == 1 else 's'}")
    )


def print_prompts(prompts: dict[str, Any]) -> None:
    """Print token counts, and the first prompt with its special tokens."""
    tokens, room = prompts["tokens"], prompts["room"]
    limit = (
        "no limit is known" if room is None else f"room for {room}, {prompts['over']:.0%} have more"
    )
    counts = f"{tokens['min']} to {tokens['max']} tokens, mean {tokens['mean']:.1f}, in the first {prompts['rows']}"
    print(f"prompts  {counts}; {limit}\n         the first, as the model sees it:")
    shown = prompts["first"] if len(prompts["first"]) <= 1500 else prompts["first"][:1500] + " ..."
    print("\n".join(f"         | {line}" for line in printable(shown).split("\n")))


def print_rewards(rewards: dict[str, Any], which: str = "") -> None:
    """Print the score of each reward for each of the made-up completions of the first row."""
    labels = list(rewards["completions"])
    width = max(len(name) for name in rewards["scores"]) if rewards["scores"] else 0
    print(f"rewards  on three made-up completions of the first row{which}:")
    print("         " + " " * width + "".join(f"{label:>9}" for label in labels))
    for name, scores in rewards["scores"].items():
        cells = "".join(f"{'-' if score is None else format(score, '.3g'):>9}" for score in scores)
        print(f"         {name:{width}}{cells}")
    in_tags = printable(rewards["completions"]["in tags"]).replace("\n", "\\n")
    print(f"         in tags: {in_tags[:200]}")
