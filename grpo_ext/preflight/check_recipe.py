"""All checks of a recipe, for the command `check` and for the start of a run."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch.optim import SGD
from transformers import get_scheduler

from grpo_ext.common.columns import TASK
from grpo_ext.curriculum.difficulty import difficulty_fault
from grpo_ext.environments.episode_rules import COLUMNS
from grpo_ext.preflight.first_rows import (
    NO_ROW,
    check_prompts,
    first_rows,
    take,
)
from grpo_ext.preflight.machine import check_machine, check_server
from grpo_ext.preflight.model_folder import check_model
from grpo_ext.preflight.rendered_rows import judge_rows
from grpo_ext.preflight.row_counts import check_eval_rows, count_train_rows
from grpo_ext.preflight.tokenized_prompts import load_tokenizer
from grpo_ext.preflight.try_code import check_code
from grpo_ext.preflight.try_environment import read_prompts, try_environment
from grpo_ext.preflight.try_rewards import three_completions, try_rewards
from grpo_ext.recipe.batch import Batch, batch_of
from grpo_ext.recipe.load import Recipe, load_recipe
from grpo_ext.recipe.problems import Findings, RecipeError
from grpo_ext.recipe.read import Overrides
from grpo_ext.recipe.rules import Values, processes
from grpo_ext.recipe.run_plan import too_few_rows
from grpo_ext.rewards.reward_specs import WeightsError, check_columns
from grpo_ext.run.from_recipe import named_rewards_and_weights

ROWS = 256  # first rows that are checked
MOST_ROWS = 4096  # most rows that are read to see whether they fill a generation


def check_recipe(
    path: str | Path | None,
    overrides: Overrides = None,
    num_processes: int | None = None,
    elsewhere: bool = False,
) -> Findings:
    """Return all findings on a recipe, as `load_recipe` takes it, that need no GPU and no loaded
    model.

    With `elsewhere` the run will be on another machine: packages, the vLLM server and the disk of
    this one are not checked. If single values are wrong, nothing else is checked.
    """
    findings = Findings(elsewhere=elsewhere)
    try:
        recipe = load_recipe(path, overrides, num_processes)
    except RecipeError as error:
        findings.problems += error.problems
        if error.recipe is None:
            findings.note("nothing else was checked: run `check` again when this is corrected.")
            return findings
        recipe = error.recipe
    sound = findings.sound
    v = recipe.flat
    findings.notes = recipe.notes
    findings.places = recipe.places
    batch = batch_of(v, num_processes or processes(v))
    check_model(v, findings)
    rows = []
    if count_train_rows(recipe, findings):
        rows = first_rows(recipe, rows_to_read(batch), findings)
    check_eval_rows(recipe, findings)
    check_parts(recipe, batch, rows, reward_parts(recipe, findings), findings)
    if batch.fits:
        sizes = {
            "prompts": batch.prompts,
            "completions": batch.completions,
            "step": batch.completions_per_step,
        }
        findings.figures["batch"] = sizes
    if not elsewhere:
        check_machine(v, findings)
        check_server(v, findings)
    if sound:
        check_training_arguments(recipe, batch, findings)
    return findings


def check_start(
    recipe: Recipe,
    train_dataset: Any = None,
    rewards: list[Any] | None = None,
    model_given: bool = False,
) -> None:
    """Do the same checks for a run that starts; `RecipeError` names all that is wrong.

    A process that trains passes its data and rewards, before it loads its model; the launcher has
    none. The vLLM server is not checked: the trainer waits for it (`vllm_server_timeout`). With
    `model_given` the model is not the recipe's.
    """
    findings = Findings(places=recipe.places)
    if model_given:
        findings.note("is not read, since another model is given.", "model_name_or_path")
    else:
        check_model(recipe.flat, findings)
    if train_dataset is not None:
        batch = batch_of(recipe.flat, processes(recipe.flat))
        rows = take(train_dataset, rows_to_read(batch))
        if not rows:
            findings.problem(NO_ROW, "dataset_name")
        check_parts(recipe, batch, rows, rewards or [], findings)
    elif "task" in recipe.schema:
        reward_parts(recipe, findings)
    check_machine(recipe.flat, findings)
    findings.refuse()


def rows_to_read(batch: Batch) -> int:
    return max(ROWS, min(batch.prompts, MOST_ROWS))


def check_parts(
    recipe: Recipe, batch: Batch, rows: list[dict[str, Any]], rewards: list[Any], findings: Findings
) -> None:
    """Check rows, prompts and rewards, and add problems and figures to `findings`."""
    v = recipe.flat
    if batch.fits and 0 < len(rows) < min(batch.prompts, MOST_ROWS):  # these are all rows
        findings.problem(too_few_rows(len(rows), batch), "per_device_train_batch_size")
    check_schedule(v, findings)
    check_difficulty(v, rows, findings)
    asked = check_prompts(rows, findings) if rows else []
    reported = {
        problem.key for problem in (*findings.problems, *findings.notes)
    }  # also a model that is not here
    there = v["model_name_or_path"] and "model_name_or_path" not in reported
    tokenizer = load_tokenizer(v, findings) if there else None
    if not asked:
        return
    judge_rows(rows[:ROWS], rewards, findings, episodes=v["environment"] is not None)
    check_code(rewards, rows[:ROWS], v["reward_timeout"], findings)
    prompts = None
    begin = None
    played = True
    if tokenizer:
        prompts, begin = read_prompts(recipe, rows[:ROWS], tokenizer, findings)
    findings.figures["prompts"] = prompts
    prefilled = bool(prompts and prompts["prefilled"])
    if begin:
        texts = list(three_completions(rows[0], prefilled).values())
        played = try_environment(begin, rows[0], texts, findings)
    try:
        check_columns(rewards, [*rows[0], *(COLUMNS if v["environment"] else ())])
        if not v["environment"] or (begin and played):
            tried = {
                task: try_rewards(rewards_of_task(rewards, task), row, prefilled, findings, begin)
                for task, row in first_of_tasks(rows, rewards).items()
            }
            key = "rewards" if len(tried) == 1 else "rewards_by_task"
            findings.figures[key] = next(iter(tried.values())) if len(tried) == 1 else tried
    except ValueError as error:
        findings.problem(error, "reward_funcs")


def first_of_tasks(rows: list[dict[str, Any]], rewards: list[Any]) -> dict[str, dict[str, Any]]:
    """Return the first row of each task; if no reward is for some tasks only, only the first
    row.
    """
    if not any(getattr(reward, "tasks", None) for reward in rewards):
        return {"": rows[0]}
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(str(row[TASK]), row)
    return found


def rewards_of_task(rewards: list[Any], task: str) -> list[Any]:
    """Return the rewards that score the rows of a task."""
    tasks_of = [getattr(reward, "tasks", None) for reward in rewards]
    return [
        reward
        for reward, tasks in zip(rewards, tasks_of, strict=True)
        if tasks is None or task in tasks
    ]


def check_difficulty(v: Values, rows: list[dict[str, Any]], findings: Findings) -> None:
    """Check that the rows have the column by which `curriculum: easy_to_hard` sorts them."""
    column = v["difficulty_column"]
    if v["curriculum"] != "easy_to_hard" or not column or not rows:
        return
    fault = difficulty_fault(column, list(rows[0]), lambda: (row[column] for row in rows))
    if fault:
        findings.problem(fault, "difficulty_column")


def check_schedule(v: Values, findings: Findings) -> None:
    """Check that `lr_scheduler_type` takes `lr_scheduler_kwargs`; transformers does so only when
    the run begins.
    """
    given = v["lr_scheduler_kwargs"]
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
        get_scheduler(
            v["lr_scheduler_type"],
            SGD([torch.zeros(1)], lr=1.0),
            1,
            2,
            scheduler_specific_kwargs=arguments,
        )
    except (ValueError, TypeError) as error:
        words = (
            f"lr_scheduler_kwargs has to be a mapping of what lr_scheduler_type takes ({error})."
        )
        findings.problem(words, "lr_scheduler_kwargs" if given else "lr_scheduler_type")


def check_training_arguments(recipe: Recipe, batch: Batch, findings: Findings) -> None:
    """Check that TRL and transformers accept the training arguments, on this machine unless the run
    will be elsewhere.
    """
    neutral: dict[str, Any] = {"report_to": "none", "deepspeed": None}
    if findings.elsewhere:
        neutral |= {"use_cpu": True, "bf16": False, "fp16": False, "tf32": None}
    else:
        recipe.fit_machine()
    given = recipe.values["training"]
    sizes = {
        key: recipe.flat[key]
        for key in ("per_device_train_batch_size", "per_device_eval_batch_size")
    }
    whole = {
        key: size * batch.num_processes for key, size in sizes.items()
    }  # this one process has the batch of all
    try:
        recipe.schema["training"](**{**given, **neutral, **whole})
    except (ValueError, ImportError) as error:
        named = [key for key in given if re.search(rf"\b{key}\b", str(error))]
        findings.problem(error, named[0] if named else None)


def reward_parts(recipe: Recipe, findings: Findings) -> list[Any]:
    """Return the rewards of the recipe; an unknown one is a problem."""
    try:
        return named_rewards_and_weights(recipe)[0]
    except ValueError as error:
        if not any(
            problem.key == "reward_weights" for problem in findings.problems
        ):  # reported already
            key = "reward_funcs" if recipe.run.reward_funcs else "reward_plugins"
            findings.problem(error, "reward_weights" if isinstance(error, WeightsError) else key)
        return []
