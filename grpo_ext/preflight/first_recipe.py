"""Create a first recipe for a data file and a model.

The batch sizes, completion length, number of steps and learning rate are chosen to suit the model
and this machine: the run should fit in memory and, on a CPU, finish within an evening.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from grpo_ext.preflight.estimated_time import rate_of_cpu, sampling_seconds, step_seconds
from grpo_ext.preflight.first_rows import Row, is_prompt
from grpo_ext.preflight.forecast import model_size
from grpo_ext.preflight.memory_fit import MEMORY_SHARE
from grpo_ext.preflight.proposal import Proposal, columns_of
from grpo_ext.preflight.proposed_reward import UNWRITTEN, most
from grpo_ext.preflight.rendered_rows import system_messages, text_of_prompt
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.load import Recipe, load_recipe
from grpo_ext.recipe.memory import ModelSize, memory_estimate
from grpo_ext.tasks.open_dataset import is_unsplit, split_names
from grpo_ext.tasks.sharegpt import chat_messages

TINY = 5_000_000  # models with fewer parameters get the sizes and learning rate of the demos
# with an adapter, models with fewer parameters get the learning rate of the first run in the docs
SMALL = 300_000_000
EVENING = 3 * 3600.0  # maximum estimated seconds of a run
LONG = 600.0  # estimated seconds of a run above which a short trial is proposed too
LONGEST_TRIAL = 120.0  # maximum estimated seconds of such a trial
MOST_TRIAL_STEPS = 5
# Completions per step, divisor of the maximum completion length, and number of steps; the first
# entry with which the run takes at most an evening is proposed.
SIZES = (
    (64, 1, 200), (64, 2, 200), (64, 4, 200), (32, 4, 200), (32, 4, 100), (32, 8, 100), (32, 8, 50),
)  # fmt: skip
FEWEST_TOKENS = 64  # the lowest max_completion_length that is proposed to save time
# completions per micro-batch, and whether gradient checkpointing is on
MICRO_BATCHES = ((64, False), (32, False), (32, True), (16, True), (8, True))
HELD_OUT_SHARE = 0.05  # share of the rows
HELD_OUT_OF_FEW = 0.2  # the same if there are fewer rows than `FEW_ROWS`
FEW_ROWS = 200
FEWEST_ROWS = 20  # if there are fewer rows, none are held out
MOST_EVALUATED = 64  # maximum number of rows in an evaluation
EVALUATIONS = 4  # number of evaluations in a run
CHECKPOINTS = 4  # number in a run; if it is killed, only the steps after the last one are lost
# Strings that occur in questions which specify the answer format.
FORMATS = ("\\boxed", "####", "<answer>", "inal answer", "the answer is", "nswer:")

# reward -> the system prompt, and the maximum length of a completion in tokens
REWARD_PROMPTS = {
    "code": ("Think, then write the program in one ```python block.", 1024),
    "json_schema": ("Answer in JSON.", 512),
    "countdown": ("Think, then give the expression in <answer> tags.", 512),
    "choice": ("Think, then end with: The answer is (X).", 512),
    "accuracy": ("Think step by step. Put the final answer in \\boxed{}.", 1024),
    "number": ("Think, then give the number in <answer> tags.", 512),
    "instructions": ("", 512),
    "exact": ("Think, then give nothing but the answer in <answer> tags.", 256),
    UNWRITTEN: ("", 256),
    "judge": ("", 256),
}


@dataclass(frozen=True)
class Trial:
    """A short run with which to try a recipe.

    Attributes:
        values: the keys and values that differ from those of the recipe.
        seconds: the estimated time of the steps and evaluations, in seconds.
    """

    values: dict[str, Any]
    seconds: float


@dataclass
class FirstRecipe:
    """The values of a first recipe, and how long its run is expected to take.

    Attributes:
        values: the keys and values of the recipe.
        seconds: the estimated time of all steps, in seconds; `None` on a GPU, or if the size of the
            model is unknown.
        trial: a short run to try first, if the run is expected to take more than `LONG` seconds;
            otherwise `None`.
    """

    values: dict[str, Any]
    seconds: float | None
    trial: Trial | None = None


def recipe_of(
    proposal: Proposal, rows: list[Row], data: str, model: str, folder: str, lora: bool
) -> FirstRecipe:
    """Return the first recipe for a proposal, adapted to the model and this machine.

    Args:
        proposal: the prompt and the reward.
        rows: the first `FEW_ROWS` rows of the data, or all rows if there are fewer.
        data: the data file, or the hub id of a dataset.
        model: the folder or hub id of the model.
        folder: the folder into which the recipe and its files will be written.
        lora: whether to train an adapter.
    """
    # a user's own function is not in the table, and gets the values of an unwritten reward
    system, max_tokens = REWARD_PROMPTS.get(proposal.reward, REWARD_PROMPTS[UNWRITTEN])
    values: dict[str, Any] = {
        "model_name_or_path": model,
        "output_dir": f"{folder}/run",
        "task": "prompts",
        "dataset_name": data,
    }
    if any(isinstance(row.get(proposal.prompt), list) for row in rows):  # chat messages
        values["prompt_column"] = proposal.prompt
    elif "{" in proposal.prompt:
        values["user_prompt"] = proposal.prompt
    else:
        values["user_prompt"] = f"{{{proposal.prompt}}}"
    if says_format(proposal.prompt, rows):
        system = ""
    renames = proposal.columns
    if proposal.answer_column:
        values["answer_column"] = proposal.answer_column
        renames = {name: of for name, of in renames.items() if name != proposal.answer_column}
    if any(name != source for name, source in renames.items()):
        values["rename_columns"] = renames
    values |= held_out_rows(data, len(rows))
    if proposal.reward == UNWRITTEN:
        values["reward_plugins"] = [f"{folder}/rewards.py"]
    reward: str | dict[str, Any] = proposal.reward
    if proposal.options:
        reward = {"name": proposal.reward, **proposal.options}
    values |= {"system_prompt": system or None, "reward_funcs": [reward]}
    return with_sizes(values, max_tokens, lora)


def says_format(prompt: str, rows: list[Row]) -> bool:
    """Return whether at least 90% of prompts specify the answer format or have a system message.

    Args:
        prompt: the column of the prompt, or a template. Of a template, only the columns that it
            uses are examined, not its own text.
        rows: the first rows of the data.
    """
    columns = columns_of(prompt)
    flags = []
    for row in rows:
        texts = []
        has_system = False
        for column in columns:
            value = chat_messages(row.get(column))
            if is_prompt(value):
                texts.append(text_of_prompt(value))
                has_system = has_system or system_messages(value) > 0
        flags.append(has_system or any(part in text for part in FORMATS for text in texts))
    return most(flags)


def held_out_rows(data: str, count: int) -> dict[str, Any]:
    """Return the recipe keys that set up evaluation, on the split `test` or on held-out rows.

    Return an empty mapping if the data has fewer than `FEWEST_ROWS` rows.

    Args:
        data: the data file, or the hub id of a dataset.
        count: the number of rows in the data; `FEW_ROWS` if there are more.
    """
    if count < FEWEST_ROWS:
        return {}
    keys: dict[str, Any] = {}
    if is_unsplit(Path(data).expanduser()) or "test" not in split_names(data, None):
        keys["held_out_share"] = HELD_OUT_SHARE if count >= FEW_ROWS else HELD_OUT_OF_FEW
    return keys | {
        "max_eval_samples": MOST_EVALUATED,
        "eval_strategy": "steps",
        "eval_on_start": True,
        "eval_steps": 200 // EVALUATIONS,
        "eval_temperature": 0,
    }


def with_sizes(values: dict[str, Any], max_tokens: int, lora: bool) -> FirstRecipe:
    """Add a learning rate, batch sizes, a completion length and a number of steps to a recipe.

    On a CPU, the sizes are the first of `SIZES` with which the run is expected to take at most an
    evening, or the last of `SIZES` if none is small enough. On a GPU, they are the first of
    `SIZES`. The micro-batch, with or without gradient checkpointing, is the first of
    `MICRO_BATCHES` that is expected to fit in memory, or the last if none is. If the dimensions of
    the model are unknown, the first sizes and the first micro-batch are used.

    Args:
        values: the other values of the recipe, not changed in place; the returned `eval_steps`,
            if set, is adapted to the number of steps.
        max_tokens: the maximum length of a completion in tokens, which `SIZES` may divide, but not
            below `FEWEST_TOKENS`. It is capped at 64 for models of fewer than `TINY` parameters.
        lora: whether to train an adapter.
    """
    settings: dict[str, Any] = {"num_generations": 8, "logging_steps": 1}
    if lora:
        settings |= {"use_peft": True, "lora_target_modules": "all-linear"}
    settings["learning_rate"] = 1e-5 if lora else 1e-6
    recipe = load_recipe(None, {**values, **settings, **sizes(64, max_tokens, 200)}, 1)
    size = model_size(recipe.flat, recipe.model)
    if size is None:
        return FirstRecipe({**values, **settings, **sizes(64, max_tokens, 200)}, None)
    if lora and size.parameters < SMALL:
        settings["learning_rate"] = 5e-4
    if size.parameters < TINY:
        settings["learning_rate"] = 4e-4
        max_tokens = min(max_tokens, 64)
    rate = None if torch.cuda.is_available() else rate_of_cpu(size.hidden_size)
    seconds = None
    for completions, divisor, steps in SIZES:
        tokens = max(max_tokens // divisor, FEWEST_TOKENS)
        for micro_batch, checkpointing in MICRO_BATCHES:
            if micro_batch > completions:
                continue
            settings |= sizes(completions, tokens, steps, micro_batch, checkpointing)
            recipe = load_recipe(None, {**values, **settings}, 1)
            if fits_memory(recipe, size):
                break
        if rate is None:
            break
        batch = batch_of(recipe.flat, 1)
        seconds = steps * step_seconds(size, recipe.flat, batch, rate)
        if seconds <= EVENING:
            break
    if "eval_steps" in values:
        settings["eval_steps"] = settings["max_steps"] // EVALUATIONS
    values = {**values, **settings}
    trial = None
    if rate is not None and seconds is not None and seconds > LONG:
        trial = trial_of(values, size, rate)
    return FirstRecipe(values, seconds, trial)


def trial_of(values: dict[str, Any], size: ModelSize, rate: float) -> Trial:
    """Return a short trial run of a recipe, with whole groups and a checkpoint at the end.

    The trial is the largest that is expected to take at most `LONGEST_TRIAL` seconds, or the
    smallest if none is short enough.

    Args:
        values: the values of the recipe.
        size: the dimensions of the model.
        rate: the rate of matrix multiplications in operations per second, from `rate_of_cpu`.
    """
    longest = values["max_completion_length"]
    changes: dict[str, Any] = {}
    seconds = 0.0
    for groups, tokens, steps in (
        (2, longest, MOST_TRIAL_STEPS),
        (1, longest, MOST_TRIAL_STEPS),
        (2, FEWEST_TOKENS, MOST_TRIAL_STEPS),
        (1, FEWEST_TOKENS, MOST_TRIAL_STEPS),
        (1, FEWEST_TOKENS, 2),
        (1, FEWEST_TOKENS, 1),
    ):
        completions = groups * values["num_generations"]
        micro_batch = min(completions, values["per_device_train_batch_size"])
        changes = sizes(completions, tokens, steps, micro_batch) | {
            "save_steps": steps,
            "gradient_checkpointing": values["gradient_checkpointing"],
        }
        if "eval_strategy" in values:
            changes["max_eval_samples"] = values["num_generations"]
        v = load_recipe(None, {**values, **changes}, 1).flat
        seconds = steps * step_seconds(size, v, batch_of(v, 1), rate)
        if "eval_strategy" in values:  # one evaluation before the first step and one at the end
            seconds += 2 * sampling_seconds(size, v, changes["max_eval_samples"], rate)
        if seconds <= LONGEST_TRIAL:
            break
    differing = {key: value for key, value in changes.items() if value != values.get(key)}
    return Trial(differing, seconds)


def sizes(
    completions: int,
    max_tokens: int,
    steps: int,
    micro_batch: int = 64,
    checkpointing: bool = False,
) -> dict[str, Any]:
    """Return recipe keys for the completion length, steps, batch sizes and gradient checkpointing.

    `save_steps` is set so that the run writes about `CHECKPOINTS` checkpoints.

    Args:
        completions: the number of completions per step.
        max_tokens: the maximum length of a completion in tokens.
        steps: the number of steps of the run.
        micro_batch: the number of completions per micro-batch, a divisor of `completions`.
        checkpointing: whether to recompute activations in the backward pass.
    """
    return {
        "max_completion_length": max_tokens,
        "max_steps": steps,
        "save_steps": steps // CHECKPOINTS,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": completions // micro_batch,
        "gradient_checkpointing": checkpointing,
    }


def fits_memory(recipe: Recipe, size: ModelSize) -> bool:
    """Return whether a run is estimated to need less than `MEMORY_SHARE` of this machine's memory.

    This is the memory of the GPU or, if there is none, the free RAM. The estimate is for prompts of
    512 tokens.
    """
    memory = psutil.virtual_memory().available
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
    v = recipe.flat
    return memory_estimate(size, v, batch_of(v, 1), prompt=512)["total"] < MEMORY_SHARE * memory
