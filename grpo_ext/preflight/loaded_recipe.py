"""Check a recipe that has been loaded, for `grpo-ext check` and at the start of a run."""

import json
from contextlib import suppress
from typing import Any

import torch
from torch.optim import SGD
from transformers import PreTrainedTokenizerBase, get_scheduler

from grpo_ext.curriculum.difficulty import difficulty_fault
from grpo_ext.environments.episode_rules import COLUMNS
from grpo_ext.environments.open_environments import close_all
from grpo_ext.preflight.first_rows import NO_ROW, Row, are_prompts, first_rows, take
from grpo_ext.preflight.forecast import layer_sizes
from grpo_ext.preflight.gold_answers import judge_golds
from grpo_ext.preflight.half_types import note_half_types
from grpo_ext.preflight.head_in_float32 import check_head
from grpo_ext.preflight.machine import check_machine, check_server, check_workers
from grpo_ext.preflight.model_folder import check_model
from grpo_ext.preflight.rendered_rows import judge_rows
from grpo_ext.preflight.row_counts import check_eval_rows, count_train_rows
from grpo_ext.preflight.sample_completions import try_rewards_on_samples
from grpo_ext.preflight.tokenized_prompts import load_tokenizer
from grpo_ext.preflight.try_code import check_code
from grpo_ext.preflight.try_environment import read_prompts, try_environments
from grpo_ext.preflight.try_rewards import try_rewards_of_tasks
from grpo_ext.recipe.batch import Batch, batch_of
from grpo_ext.recipe.episode_options import environments_of
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.memory import eval_batch_size
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values, processes
from grpo_ext.recipe.run_plan import make_plan, too_few_rows
from grpo_ext.rewards.reward_specs import WeightsError, check_columns
from grpo_ext.run.from_recipe import Rows, named_rewards_and_weights
from grpo_ext.run.task_rows import task_options
from grpo_ext.tasks.environment_rows import EnvironmentRows
from grpo_ext.tasks.prompts import TO_DO, Prompts

CHECKED_ROWS = 256  # number of first rows whose prompts and columns are checked
MAX_READ_ROWS = 4096  # maximum number of rows read to find out whether they fill a generation


def check_loaded(
    recipe: Recipe, findings: Findings, num_processes: int | None = None, num_samples: int = 0
) -> None:
    """Run all checks on a recipe whose individual values are valid.

    Some checks adapt the recipe to this machine in place (`Recipe.fit_machine`).

    Args:
        recipe: the recipe to check.
        findings: contains the problems that the rules have found, and receives the results of the
            checks. The notes and places that it contains are replaced with those of the recipe.
        num_processes: the number of training processes; `None` uses the number in the recipe's
            accelerate config.
        num_samples: the number of completions to sample from the model to try the rewards on, which
            is rounded up to whole groups; if 0, the model is not loaded.

    Raises:
        OSError: if the model's folder cannot be listed or has too many entries.
    """
    values_agree = findings.sound
    v = recipe.flat
    findings.notes = recipe.notes
    findings.places = recipe.places
    batch = batch_of(v, num_processes or processes(v))
    check_model(v, findings)
    if recipe.grpo:
        check_head(v, findings)
    rows: list[Row] = []
    eval_rows = None
    if not lacks_environment_of_rows(recipe, findings):
        if count_train_rows(recipe, findings):
            rows = first_rows(recipe, rows_to_read(batch), findings)
        eval_rows = check_eval_rows(recipe, findings)
    if batch.fits and values_agree:
        is_complete = 0 < len(rows) < rows_to_read(batch)
        check_evaluations(v, batch, len(rows) if is_complete else None, eval_rows, findings)
    check_parts(recipe, batch, rows, rewards_of(recipe, findings), findings, num_samples)
    if num_samples and "samples" not in findings.figures:
        findings.note(
            "no completions were sampled. --sample needs a recipe without problems, and the "
            "training rows and the model's tokenizer must be available on this machine."
        )
    if batch.fits:
        findings.figures["batch"] = {
            "prompts": batch.prompts,
            "completions": batch.completions,
            "step": batch.completions_per_step,
        }
    if not findings.elsewhere:
        check_machine(v, findings)
        check_server(v, findings)
        if recipe.grpo:
            note_half_types(v, findings)
    if values_agree:
        check_training_arguments(recipe, batch, findings)


def lacks_environment_of_rows(recipe: Recipe, findings: Findings) -> bool:
    """Return whether the rows come from an environment for which a problem has been reported.

    Reading such rows would report the same problem again.
    """
    return isinstance(recipe.task, EnvironmentRows) and findings.has_problem("environment")


def check_evaluations(
    v: Values, batch: Batch, rows: int | None, eval_rows: int | None, findings: Findings
) -> None:
    """Record the eval batch size; add a note if evaluation samples more completions than training.

    If `eval_strategy` is `no`, nothing is recorded or noted. No note is added if the number of
    training steps cannot be computed.

    Args:
        v: the values of the recipe.
        batch: the recipe's batch sizes.
        rows: the number of training rows; `None` if it is unknown.
        eval_rows: the number of held-out rows; `None` if it is unknown.
        findings: receives the note, and the figure "eval_batch" if the recipe sets the size or the
            dimensions of the model are known.
    """
    if str(v.eval_strategy) == "no":
        return
    size = layer_sizes(v)
    if size is not None or v.per_device_eval_batch_size is not None:
        findings.figures["eval_batch"] = eval_batch_size(v, batch, size)
    fills = rows is not None and rows >= batch.prompts
    if fills or (rows is None and v.max_steps > 0):
        remark = make_plan(v, batch.num_processes, rows, eval_rows).eval_remark
        if remark:
            findings.note(remark, "eval_strategy")


def check_start(
    recipe: Recipe,
    train_dataset: Rows | None = None,
    rewards: list[Any] | None = None,
    model_given: bool = False,
) -> None:
    """Check a recipe again when its run starts.

    The vLLM server is not checked, because the trainer waits for it (`vllm_server_timeout`).

    Args:
        recipe: the recipe of the run.
        train_dataset: the training rows; `None` in the launcher, which leaves checking them to the
            training processes.
        rewards: the rewards of the run; used only if `train_dataset` is given.
        model_given: whether a model was passed to the run; the recipe's model is then not checked.

    Raises:
        RecipeError: if there are problems; the error contains all of them.
        OSError: if the model's folder cannot be listed or has too many entries.
    """
    findings = Findings(places=recipe.places)
    if model_given:
        findings.note(
            "model_name_or_path was not checked, because a model was passed to the run.",
            "model_name_or_path",
        )
    else:
        check_model(recipe.flat, findings)
        if recipe.grpo:
            check_head(recipe.flat, findings)
    if train_dataset is not None:
        batch = batch_of(recipe.flat, processes(recipe.flat))
        rows = take(train_dataset, rows_to_read(batch))
        if not rows:
            findings.problem(NO_ROW, "dataset_name")
        check_parts(recipe, batch, rows, rewards or [], findings)
    elif recipe.grpo:
        rewards_of(recipe, findings)
    check_machine(recipe.flat, findings)
    findings.refuse()


def rows_to_read(batch: Batch) -> int:
    return max(CHECKED_ROWS, min(batch.prompts, MAX_READ_ROWS))


def check_parts(
    recipe: Recipe,
    batch: Batch,
    rows: list[Row],
    rewards: list[Any],
    findings: Findings,
    num_samples: int = 0,
) -> None:
    """Check the rows, prompts, environments and rewards of a recipe.

    A check is skipped if it depends on something that has already failed. Environments opened by
    the checks are closed again.

    Args:
        recipe: the recipe to check.
        batch: the recipe's batch sizes.
        rows: the first `rows_to_read` training rows; empty if they cannot be read.
        rewards: the rewards of the run.
        findings: receives the problems, notes and figures.
        num_samples: the number of completions to sample from the model to try the rewards on.
    """
    v = recipe.flat
    # If fewer rows were read than requested, the data has no more.
    if batch.fits and 0 < len(rows) < min(batch.prompts, MAX_READ_ROWS):
        findings.problem(too_few_rows(len(rows), batch), "per_device_train_batch_size")
    check_schedule(v, findings)
    check_difficulty(v, rows, findings)
    check_written(recipe, findings)
    prompts_are_sound = bool(rows) and are_prompts(rows, findings)
    tokenizer = None
    if v["model_name_or_path"] and not findings.mentions("model_name_or_path"):
        tokenizer = load_tokenizer(v, findings)
    if not prompts_are_sound:
        return
    has_episodes = bool(environments_of(v))
    checked_rows = rows[:CHECKED_ROWS]
    judge_rows(checked_rows, rewards, findings, episodes=has_episodes)
    judge_golds(checked_rows, rewards, findings)
    check_code(rewards, checked_rows, v["reward_timeout"], findings)
    check_workers(rewards, findings)
    try:
        check_completions(recipe, rows, tokenizer, rewards, findings, num_samples)
    finally:
        close_all()


def check_completions(
    recipe: Recipe,
    rows: list[Row],
    tokenizer: PreTrainedTokenizerBase | None,
    rewards: list[Any],
    findings: Findings,
    num_samples: int,
) -> None:
    """Check the prompts, and try the environments and rewards on made-up and sampled completions.

    Args:
        recipe: the recipe to check.
        rows: the first training rows; at least one.
        tokenizer: the model's tokenizer; `None` if it cannot be loaded.
        rewards: the rewards of the run.
        findings: receives the problems, notes and figures.
        num_samples: the number of completions to sample from the model; none are sampled if
            `findings` contains a problem or there is no tokenizer.
    """
    has_episodes = bool(environments_of(recipe.flat))
    checked_rows = rows[:CHECKED_ROWS]
    prompts = None
    begin = None
    if tokenizer:
        prompts, begin = read_prompts(recipe, checked_rows, tokenizer, findings)
    findings.figures["prompts"] = prompts
    prefilled = bool(prompts and prompts["prefilled"])
    can_try_rewards = True
    if has_episodes:
        can_try_rewards = begin is not None and try_environments(begin, rows, prefilled, findings)
    try:
        check_columns(rewards, [*rows[0], *(COLUMNS if has_episodes else ())])
        if can_try_rewards:
            max_failure_rate = recipe.flat.reward_max_failure_rate
            findings.figures |= try_rewards_of_tasks(
                rewards, rows, prefilled, findings, begin, max_failure_rate
            )
    except ValueError as error:
        findings.problem(error, "reward_funcs")
    if num_samples and tokenizer is not None and findings.sound:
        try_rewards_on_samples(recipe, rewards, rows, tokenizer, num_samples, findings, begin)


def check_written(recipe: Recipe, findings: Findings) -> None:
    """Check that no `user_prompt` still contains the `TO DO` line that `grpo-ext init` writes."""
    for name, (task, _) in task_options(recipe).items():
        if not isinstance(task, Prompts):
            continue
        place = f"tasks: {name}: " if name else ""
        for line in (task.user_prompt or "").splitlines():
            if line.startswith(TO_DO):
                findings.problem(
                    f"{place}user_prompt still contains the line {line!r} of `grpo-ext init`. "
                    "Replace this line with what it asks for.",
                    "user_prompt",
                )


def check_difficulty(v: Values, rows: list[Row], findings: Findings) -> None:
    """Check the column by which `curriculum: easy_to_hard` sorts the rows.

    Nothing is checked if the recipe uses another curriculum, if `difficulty_column` is not set, or
    if there are no rows.

    Args:
        v: the values of the recipe.
        rows: the first rows.
        findings: receives the problem.
    """
    column = v["difficulty_column"]
    if v["curriculum"] != "easy_to_hard" or not column or not rows:
        return
    fault = difficulty_fault(column, list(rows[0]), lambda: (row[column] for row in rows))
    if fault:
        findings.problem(fault, "difficulty_column")


def check_schedule(v: Values, findings: Findings) -> None:
    """Check that the scheduler named by `lr_scheduler_type` accepts `lr_scheduler_kwargs`.

    transformers checks this only when training begins.
    """
    kwargs = v["lr_scheduler_kwargs"]
    try:
        get_scheduler(
            v["lr_scheduler_type"],
            SGD([torch.zeros(1)], lr=1.0),
            num_warmup_steps=1,
            num_training_steps=2,
            scheduler_specific_kwargs=json.loads(kwargs) if isinstance(kwargs, str) else kwargs,
        )
    except (ValueError, TypeError) as error:
        written = "null" if kwargs is None else kwargs
        findings.problem(
            f"`lr_scheduler_kwargs: {written}` does not fit lr_scheduler_type ({error}). Set "
            "lr_scheduler_kwargs to a mapping with the arguments that this scheduler needs.",
            "lr_scheduler_kwargs" if kwargs else "lr_scheduler_type",
        )


def check_training_arguments(recipe: Recipe, batch: Batch, findings: Findings) -> None:
    """Check that TRL and transformers accept the training arguments.

    If the run will be on this machine, the recipe is first adapted to it in place. If the run will
    be on another machine, the recipe stays as it is, and the arguments are checked for a CPU.

    Args:
        recipe: the recipe to check.
        batch: the recipe's batch sizes, with the number of processes.
        findings: receives the problem.
    """
    arguments = recipe.values["training"]
    if not findings.elsewhere:
        recipe.fit_machine()
    replaced: dict[str, Any] = {"report_to": "none", "deepspeed": None}
    if findings.elsewhere:
        replaced |= {"use_cpu": True, "bf16": False, "fp16": False, "tf32": None}
    # This single process gets the batch of all processes.
    for key in ("per_device_train_batch_size", "per_device_eval_batch_size"):
        if recipe.flat[key] is not None:
            replaced[key] = recipe.flat[key] * batch.num_processes
    accepted = arguments | replaced
    config_class = recipe.class_of("training")
    try:
        config_class(**accepted)
    except (ValueError, ImportError) as error:
        findings.problem(error, argument_at_fault(config_class, arguments, replaced))


def argument_at_fault(
    config_class: type, arguments: dict[str, Any], replaced: dict[str, Any]
) -> str | None:
    """Return the first argument without which the others are accepted, or `None` if there is none.

    Args:
        config_class: the class of the training arguments, which rejects them if all are passed.
        arguments: the values that the recipe sets.
        replaced: values that replace the recipe's.
    """
    for key in arguments:
        others = arguments | replaced
        del others[key]
        with suppress(ValueError, ImportError):
            config_class(**others)
            return key
    return None


def rewards_of(recipe: Recipe, findings: Findings) -> list[Any]:
    """Build the recipe's rewards; if this fails, report why and return an empty list.

    Invalid weights are not reported again if the recipe's rules have reported them.
    """
    try:
        return named_rewards_and_weights(recipe)[0]
    except WeightsError as error:
        if not findings.has_problem("reward_weights"):  # the recipe's rules may have reported it
            findings.problem(error, "reward_weights")
    except ValueError as error:
        findings.problem(error, "reward_funcs" if recipe.run.reward_funcs else "reward_plugins")
    return []
