"""The checks of a recipe together: as a command asks for them, and as the trainer does at its start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from datasets import Dataset

from grpo_ext.preflight.findings import Findings
from grpo_ext.preflight.first_rows import (
    NO_ROW,
    check_eval_rows,
    check_prompts,
    check_reward_columns,
    first_rows,
    take,
)
from grpo_ext.preflight.machine import check_disk, check_machine, check_server
from grpo_ext.preflight.schedule import check_schedule
from grpo_ext.preflight.tokenized_prompts import load_tokenizer, look_at_prompts
from grpo_ext.preflight.try_rewards import try_rewards
from grpo_ext.recipe.batch import Batch, batch_of
from grpo_ext.recipe.load import Recipe, load_recipe
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.recipe.rules import processes
from grpo_ext.recipe.run_plan import too_few_rows
from grpo_ext.run.parts import check_model_folder, named_rewards_and_weights

ROWS = 256  # how many of the first rows are looked at
MOST_ROWS = 4096  # how many are read to see whether there are enough for a generation


def check_recipe(
    path: str | Path | None,
    overrides: dict[str, Any] | list[str] | None = None,
    num_processes: int | None = None,
    elsewhere: bool = False,
) -> Findings:
    """Check all that can be known of a recipe without a GPU and without loading a model.

    Args:
        path, overrides, num_processes: as `load_recipe` takes them.
        elsewhere: the run will be on another machine; leave out packages, the vLLM server and the disk of this one.

    Returns:
        `Findings`. Where single values are wrong, the parts of the run are not looked at: there is nothing to look at yet.
    """
    findings = Findings()
    try:
        recipe = load_recipe(path, overrides, num_processes)
    except RecipeError as error:
        findings.problems += error.problems
        if error.recipe is None:
            return findings
        recipe = error.recipe
    findings.notes, findings.places = recipe.notes, recipe.places
    batch = batch_of(recipe.flat, num_processes or processes(recipe.flat))
    if findings.sound:
        check_arguments(recipe, batch, findings)
    if recipe.flat["model_name_or_path"]:  # else it is told already
        try:
            check_model_folder(recipe)
        except FileNotFoundError as error:
            findings.problem(error, "model_name_or_path")
    rows = first_rows(recipe, max(ROWS, min(batch.prompts, MOST_ROWS)), findings)
    check_eval_rows(recipe, findings)
    check_parts(recipe, rows, _rewards(recipe, findings), findings)
    if batch.fits:
        sizes = {"prompts": batch.prompts, "completions": batch.completions, "step": batch.completions_per_step}
        findings.figures["batch"] = sizes
        if rows and len(rows) < min(batch.prompts, MOST_ROWS):  # these are all that there are
            findings.problem(too_few_rows(len(rows), batch), "per_device_train_batch_size")
    if not elsewhere:
        check_machine(recipe.flat, findings)
        check_server(recipe.flat, findings)
        check_disk(recipe.flat, findings)
    return findings


def check_start(recipe: Recipe, train_dataset: Any, rewards: list[Any]) -> None:
    """The same checks on the parts of a run, before its model is loaded; `RecipeError` names all that is wrong.

    Whether the vLLM server answers is left out: the trainer waits for one (`vllm_server_timeout`).
    """
    findings = Findings(places=recipe.places)
    rows = take(train_dataset, ROWS)
    if not rows:
        findings.problem(NO_ROW, "dataset_name")
    batch = batch_of(recipe.flat, processes(recipe.flat))
    if isinstance(train_dataset, Dataset) and 0 < len(train_dataset) < batch.prompts:
        findings.problem(too_few_rows(len(train_dataset), batch), "per_device_train_batch_size")
    check_parts(recipe, rows, rewards, findings)
    check_disk(recipe.flat, findings)
    if findings.problems:
        raise RecipeError(findings.problems)


def check_parts(recipe: Recipe, rows: list[dict[str, Any]], rewards: list[Any], findings: Findings) -> None:
    """Rows, prompts and rewards: what is wrong goes into `findings`, and what was seen."""
    v = recipe.flat
    check_schedule(v, findings)
    asked = check_prompts(rows, findings) if rows else []
    difficulty = v["difficulty_column"]
    if rows and difficulty and difficulty not in rows[0]:
        words = f"the data has no column {difficulty!r}. Its columns: {', '.join(rows[0])}."
        findings.problem(f"difficulty_column: {words}", "difficulty_column")
    there = v["model_name_or_path"] and not any(p.key == "model_name_or_path" for p in findings.problems)
    tokenizer = load_tokenizer(v, findings) if there else None
    prompts = look_at_prompts(asked[:ROWS], tokenizer, v, findings) if asked and tokenizer else None
    findings.figures["prompts"] = prompts
    if asked and check_reward_columns(rows, rewards, findings):
        opened = bool(prompts and prompts["prefilled"])
        findings.figures["rewards"] = try_rewards(rewards, rows[0], opened, findings)


def check_arguments(recipe: Recipe, batch: Batch, findings: Findings) -> None:
    """Whether TRL and transformers take the training arguments, as far as they do not ask what this machine has."""
    given = recipe.values["training"]
    neutral = {"use_cpu": True, "bf16": False, "fp16": False, "tf32": None, "report_to": "none", "deepspeed": None}
    sizes = {key: recipe.flat[key] for key in ("per_device_train_batch_size", "per_device_eval_batch_size")}
    whole = {key: size * batch.num_processes for key, size in sizes.items()}  # one process stands for all
    try:
        recipe.schema["training"](**{**given, **neutral, **whole})
    except (ValueError, ImportError) as error:
        named = [key for key in given if re.search(rf"\b{key}\b", str(error))]
        findings.problem(error, named[0] if named else None)


def _rewards(recipe: Recipe, findings: Findings) -> list[Any]:
    """The rewards that the recipe names; one that is unknown is a problem."""
    try:
        return named_rewards_and_weights(recipe)[0]
    except ValueError as error:
        if not any(problem.key == "reward_weights" for problem in findings.problems):  # told already
            findings.problem(error, "reward_funcs" if recipe.run.reward_funcs else "reward_plugins")
        return []
