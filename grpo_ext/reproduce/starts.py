"""Create the tiny models that runs start from, and warm them up on a demo's demonstrations."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_ext.demo.demos import DEMOS
from grpo_ext.recipe.folder import recipe_folder
from grpo_ext.recipe.load import load_recipe
from grpo_ext.reproduce.claims import Start
from grpo_ext.rewards.answers import TAGS, first_answer
from grpo_ext.tasks.base import Task
from grpo_ext.tiny.demonstrations import Demonstration
from grpo_ext.tiny.word_problems import with_tag_fault

Demonstrations = Callable[..., Iterator[Demonstration]]
UNTIDY = 0.5  # share of the demonstrations with a tag omitted, doubled or misplaced


def untidy_tags(demonstrations: Demonstrations) -> Demonstrations:
    """Wrap a function that yields demonstrations, so that about half of them have a tag fault.

    This leaves the format for GRPO to teach. A fault is added with probability `UNTIDY`, unless a
    demonstration does not have every tag on a line of its own.
    """

    def with_faults(task: Task, count: int, *, seed: int = 0) -> Iterator[Demonstration]:
        rng = random.Random(seed)
        for row in demonstrations(task, count, seed=seed):
            lines = row["completion"][0]["content"].splitlines()
            if rng.random() < UNTIDY and set(TAGS) <= set(lines):
                lines = with_tag_fault(lines, rng)
            yield with_text(row, "\n".join(lines))

    return with_faults


def line_only(demonstrations: Demonstrations) -> Demonstrations:
    """Wrap a function that yields demonstrations, so that each completion is only its answer text.

    A completion without an answer is left unchanged.
    """

    def answers(task: Task, count: int, *, seed: int = 0) -> Iterator[Demonstration]:
        for row in demonstrations(task, count, seed=seed):
            text = row["completion"][0]["content"]
            answer = first_answer(text)
            if answer is not None:
                text = answer.strip()
            yield with_text(row, text)

    return answers


def with_text(row: Demonstration, text: str) -> Demonstration:
    return {**row, "completion": [{"role": "assistant", "content": text}]}


STYLES: dict[str, Callable[[Demonstrations], Demonstrations]] = {
    "demo": lambda demonstrations: demonstrations,
    "untidy_tags": untidy_tags,
    "line_only": line_only,
}


def model_of(start: Start, folder: Path) -> Path:
    """Return the path at which `make_start` saves the model, given the folder of the job."""
    return folder / ("warm_start" if start.max_steps else "model")


def make_start(
    start: Start,
    recipe: str,
    folder: Path,
    seed: int,
) -> int:
    """Create a tiny model and, unless `start.max_steps` is 0, train it on demonstrations.

    Args:
        start: the description of the model.
        recipe: the experiment's recipe, whose task provides the problems to demonstrate.
        folder: the folder of the job; the model is saved at `model_of(start, folder)`. A subfolder
            `warm_start` from an earlier attempt is deleted.
        seed: the seed for the weights, the demonstrations and the training.

    Returns:
        The exit code of the training, or 0 if the model is not trained.
    """
    from grpo_ext.sft import main

    demo = DEMOS[start.demo]
    in_style = STYLES[start.demonstrations]
    demo = replace(demo, demonstrations=in_style(demo.demonstrations), count=start.count)
    settings = {"model_name_or_path": folder / "model", **start.task}
    task = load_recipe(recipe_folder() / recipe, as_words(settings)).task
    shutil.rmtree(folder / "warm_start", ignore_errors=True)  # left by a job that was killed
    demo.prepare(task, folder, seed)
    if not start.max_steps:
        return 0
    arguments = as_words(
        {
            "model_name_or_path": folder / "model",
            "dataset_name": folder / "demonstrations.jsonl",
            "output_dir": folder / "warm_start",
            "seed": seed,
            "max_steps": start.max_steps,
            "disable_tqdm": True,
        }
    )
    sft_recipe = recipe_folder() / demo.sft_recipe
    return main(["--config", str(sft_recipe), *arguments])


def as_words(settings: dict[str, Any]) -> list[str]:
    """Return settings as command-line arguments `--key value`.

    Strings and paths are passed as they are, other values as JSON.
    """
    arguments = []
    for key, value in settings.items():
        is_text = isinstance(value, str | Path)
        text = str(value) if is_text else json.dumps(value)
        arguments += [f"--{key}", text]
    return arguments
