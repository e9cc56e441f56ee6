"""`grpo-ext init`: write a first recipe for a data file and a model.

examples:
  grpo-ext init questions.csv Qwen/Qwen2.5-0.5B-Instruct
  grpo-ext init rows.jsonl runs/countdown-tiny/warm_start --output mine --yes
  grpo-ext init openai/gsm8k Qwen/Qwen2.5-7B-Instruct --lora
  grpo-ext init letters.jsonl Qwen/Qwen2.5-7B-Instruct --judge http://127.0.0.1:8000/v1
  grpo-ext init rows.jsonl Qwen/Qwen2.5-0.5B-Instruct --bench

It looks at the first rows, proposes the prompt, the reward, sizes that fit this machine by estimate, and a learning rate, and
asks about the first two. It writes recipe.yaml, rewards.py or the judge's rubric.md, and README.md with the next commands, and
checks the recipe. With --bench it then measures as `grpo-ext bench` does, and takes the fastest settings.

exit codes: 0 written; 1 written, but check or measurement failed; 2 the data cannot be used, or a recipe is there already
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ext.cli.command import add_command
from grpo_ext.common.untrusted import one_line, printable

if TYPE_CHECKING:
    from grpo_ext.preflight.first_recipe import Found

ROWS = 200  # that are looked at
RUBRIC = "Grade how well the completion does its task: 10 is as good as the reference or better, 0 is useless.\n"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, __doc__, run)
    parser.add_argument(
        "data", metavar="DATA", help="a jsonl, json, csv or parquet file, or a hub id"
    )
    parser.add_argument("model", metavar="MODEL", help="a folder or hub id")
    parser.add_argument(
        "--output", default="mine", metavar="FOLDER", help="the folder to write to (default: mine)"
    )
    parser.add_argument(
        "--judge",
        metavar="URL",
        help="an OpenAI-like address: its model grades what no rule can judge",
    )
    parser.add_argument("--lora", action="store_true", help="train an adapter")
    parser.add_argument(
        "--bench",
        action="store_true",
        help="measure for about two minutes, and take the fastest settings",
    )
    parser.add_argument("--yes", action="store_true", help="ask nothing")


def run(args: argparse.Namespace) -> int:
    from grpo_ext.common.files import data_lines, write_atomically
    from grpo_ext.preflight.check_recipe import check_recipe
    from grpo_ext.preflight.first_recipe import ASK, PROMPTS, judged, look, recipe_of
    from grpo_ext.tasks.open_dataset import open_dataset

    folder = Path(args.output)
    if not str(folder).isprintable() or set(str(folder)) & set("\"'`\\"):
        raise ValueError(
            "--output: the folder's name must not contain quotes, backslashes or control characters, because it stands in "
            "the files that are written."
        )
    if os.path.lexists(folder / "recipe.yaml"):
        raise ValueError(f"{folder}/recipe.yaml is there already: write --output OTHER.")
    rows = [dict(row) for row in islice(open_dataset(args.data, streaming=True), ROWS)]
    found = look(rows)
    if not args.yes:
        shown = printable(found.prompt.replace("\n", "\\n"))
        question = f"The prompt, a column or a template of columns in braces, is [{shown}]"
        prompt = answered(question, found.prompt, list(rows[0]), template_of=list(rows[0]))
        found = found if prompt == found.prompt else look(rows, prompt)
        known = [name for name in ASK if name != "judge"]  # --judge names that one
        question = f"The reward is [{found.reward}], since {one_line(found.why)}"
        reward = answered(question, found.reward, known)
        found = (
            found
            if reward == found.reward
            else replace(found, reward=reward, why="it was chosen", options={})
        )
    judge = args.judge and found.reward == "like_reference"
    if judge:
        found = judged(found, args.judge, str(folder))
    values = recipe_of(found, rows, args.data, args.model, str(folder), args.lora)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "recipe.yaml", in_yaml(values, found, args.lora))
    if judge:
        write_atomically(folder / "rubric.md", RUBRIC)
    else:
        own = "\n".join(data_lines("grpo_ext.preflight", "own_rewards.txt")).replace(
            "REWARDS", f"{folder}/rewards.py"
        )
        write_atomically(folder / "rewards.py", own + "\n")
    recipe = f"{folder}/recipe.yaml"
    config = shlex.quote(recipe)
    run_folder = shlex.quote(f"{folder}/run")
    commands = f"grpo-ext check --config {config}\ngrpo-ext train --config {config}\ngrpo-ext report {run_folder}"
    write_atomically(folder / "README.md", f"# {folder.name}\n\n```bash\n{commands}\n```\n")
    print(f"{recipe}: reward {found.reward}, since {one_line(found.why)}. Next:\n{commands}")
    if found.guessed:
        print(
            f"No column has the usual name of a question ({', '.join(PROMPTS)}), so the prompt is the longest text, "
            f"{one_line(found.prompt)}: write what the model should do into user_prompt."
        )
    findings = check_recipe(recipe)
    problems = findings.problems
    for finding in (*problems, *findings.notes):
        print(printable(str(finding)))
    if args.bench and not problems:
        from grpo_ext.bench.search import fastest_settings

        print("Measuring for about two minutes.", flush=True)
        try:
            values |= fastest_settings(recipe)
        except ValueError as error:
            print(f"Nothing was measured, and the sizes stay estimates: {error}")
            return 1
        write_atomically(folder / "recipe.yaml", in_yaml(values, found, args.lora, measured=True))
    return int(bool(problems))


def answered(
    question: str, default: str, allowed: list[str], template_of: list[str] | None = None
) -> str:
    """Return an answer from the terminal: one of `allowed`, or a template of the columns `template_of`; else `default`.

    `ValueError` if standard input is closed.
    """
    while True:
        try:
            text = input(f"{question}: ").strip().replace("\\n", "\n")
        except EOFError:
            raise ValueError(
                "standard input is closed, so nothing can be asked: write --yes to take what is proposed."
            ) from None
        if not text or text == default:
            return default
        if text in allowed or (template_of and is_template(text, template_of)):
            return text
        more = " or a template with columns in braces" if template_of else ""
        print(f"Write one of {', '.join(map(one_line, allowed))}{more}.")


def is_template(text: str, columns: list[str]) -> bool:
    """Return whether a text has columns in braces, and no other names."""
    from grpo_ext.tasks.base import template_fields

    try:
        fields = template_fields(text)
    except ValueError:
        return False
    return bool(fields) and fields <= {*columns}


def yaml_scalar(value: Any) -> str:
    """Return a value as JSON that is also YAML: characters that YAML reads as line breaks or refuses become escapes."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(
        character if character.isprintable() else f"\\U{ord(character):08x}" for character in text
    )


def in_yaml(values: dict[str, Any], found: Found, lora: bool, measured: bool = False) -> str:
    """Return the recipe with a comment where a value was a choice; the sizes are `measured` or estimated."""
    sizes = (
        "by `grpo-ext bench` on this machine"
        if measured
        else "fits by estimate; `grpo-ext bench` measures"
    )
    rate = (
        "as in the demos, for a tiny model"
        if values["learning_rate"] > 1e-4
        else "LoRA takes about ten times the rate of full training (thinkingmachines.ai/blog/lora)"
        if lora
        else "as DeepSeekMath (2402.03300)"
    )
    why = {
        "reward_funcs": found.why, "max_steps": "raise it once the curves look right",
        "per_device_train_batch_size": sizes, "learning_rate": rate,
    }  # fmt: skip
    lines = []
    for key, value in values.items():
        text = f"{key}: {yaml_scalar(value)}"
        lines.append(f"{text}  # {one_line(why[key])}" if key in why else text)
    lines.append(
        "# held_out_share: 0.05   # rows for evaluation only; with eval_strategy: steps and eval_steps: 20 also in training"
    )
    return "\n".join(lines) + "\n"
