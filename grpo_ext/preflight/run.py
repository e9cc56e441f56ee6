"""The checks of a recipe together: as a command asks for them, and as the trainer does at its start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from datasets import Dataset

from grpo_ext.preflight.machine import check_disk, check_machine, check_server
from grpo_ext.preflight.prompts import load_tokenizer, look_at_prompts
from grpo_ext.preflight.report import Report
from grpo_ext.preflight.rewards import try_rewards
from grpo_ext.preflight.rows import NO_ROW, check_rows, first_rows, take
from grpo_ext.recipe.batch import Batch, batch_of
from grpo_ext.recipe.check import processes
from grpo_ext.recipe.load import Recipe, load_recipe
from grpo_ext.recipe.plan import too_few_rows
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.setup_run import check_model_folder, named_rewards_and_weights

ROWS = 256  # how many of the first rows are looked at
MOST_ROWS = 4096  # how many are read to see whether there are enough for a generation


def check_recipe(
    path: str | Path | None,
    overrides: dict[str, Any] | list[str] | None = None,
    num_processes: int | None = None,
    elsewhere: bool = False,
) -> Report:
    """Check all that can be known of a recipe without a GPU and without loading a model.

    Args:
        path, overrides, num_processes: as `load_recipe` takes them.
        elsewhere: the run will be on another machine; leave out packages, the vLLM server and the disk of this one.

    Returns:
        `Report`. Where single values are wrong, the parts of the run are not looked at: there is nothing to look at yet.
    """
    try:
        recipe = load_recipe(path, overrides, num_processes)
    except RecipeError as error:
        return Report(problems=error.problems)
    report = Report(notes=recipe.notes, places=recipe.places)
    v = recipe.flat
    try:
        check_model_folder(recipe)
    except FileNotFoundError as error:
        report.problem(error, "model_name_or_path")
    batch = batch_of(v, num_processes or processes(v))
    check_arguments(recipe, batch, report)
    rows = first_rows(recipe, max(ROWS, min(batch.prompts, MOST_ROWS)), report)
    check_parts(recipe, rows, _rewards(recipe, report), report)
    if rows and len(rows) < min(batch.prompts, MOST_ROWS):  # these are all that there are
        report.problem(too_few_rows(len(rows), batch), "per_device_train_batch_size")
    report.figures["batch"] = {
        "prompts": batch.prompts,
        "completions": batch.completions,
        "step": batch.completions_per_step,
    }
    if not elsewhere:
        check_machine(v, report)
        check_server(v, report)
        check_disk(v, report)
    return report


def check_start(recipe: Recipe, train_dataset: Any, rewards: list[Any]) -> None:
    """The same checks on the parts of a run, before its model is loaded.

    Whether the vLLM server answers is left out: the trainer waits for one (`vllm_server_timeout`).

    Raises:
        RecipeError: naming all that is wrong.
    """
    report = Report(places=recipe.places)
    rows = take(train_dataset, ROWS)
    if not rows:
        report.problem(NO_ROW, "dataset_name")
    batch = batch_of(recipe.flat, processes(recipe.flat))
    if isinstance(train_dataset, Dataset) and 0 < len(train_dataset) < batch.prompts:
        report.problem(too_few_rows(len(train_dataset), batch), "per_device_train_batch_size")
    check_parts(recipe, rows, rewards, report)
    check_disk(recipe.flat, report)
    if report.problems:
        raise RecipeError(report.problems)


def check_parts(recipe: Recipe, rows: list[dict[str, Any]], rewards: list[Any], report: Report) -> None:
    """Rows, prompts and rewards: what is wrong goes into `report`, and what was seen."""
    faults = len(report.problems)
    if rows:
        check_rows(rows, rewards, report)
    if not rows or len(report.problems) > faults:
        return
    v = recipe.flat
    there = not any(problem.key == "model_name_or_path" for problem in report.problems)
    tokenizer = load_tokenizer(v, report) if there else None
    prompts = look_at_prompts([row["prompt"] for row in rows[:ROWS]], tokenizer, v, report) if tokenizer else None
    report.figures["prompts"] = prompts
    report.figures["rewards"] = try_rewards(rewards, rows[0], bool(prompts and prompts["prefilled"]), report)


def check_arguments(recipe: Recipe, batch: Batch, report: Report) -> None:
    """Whether TRL and transformers take the training arguments, as far as they do not ask what this machine has."""
    given = recipe.values["training"]
    neutral = {"use_cpu": True, "bf16": False, "fp16": False, "tf32": None, "report_to": "none", "deepspeed": None}
    sizes = {key: recipe.flat[key] for key in ("per_device_train_batch_size", "per_device_eval_batch_size")}
    whole = {key: size * batch.num_processes for key, size in sizes.items()}  # one process stands for all
    try:
        recipe.schema["training"](**{**given, **neutral, **whole})
    except (ValueError, ImportError) as error:
        named = [key for key in given if re.search(rf"\b{key}\b", str(error))]
        report.problem(error, named[0] if named else None)


def _rewards(recipe: Recipe, report: Report) -> list[Any]:
    """The rewards that the recipe names; one that is unknown is a problem."""
    try:
        return named_rewards_and_weights(recipe)[0]
    except ValueError as error:
        report.problem(error, "reward_funcs" if recipe.run.reward_funcs else "reward_plugins")
        return []
