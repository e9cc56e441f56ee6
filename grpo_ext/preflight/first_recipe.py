"""Create a first recipe for a data file and a model.

The prompt and the reward are chosen to suit the rows. The sizes and the learning rate are chosen to
suit the model and this machine.
"""

import re
from typing import Any

import psutil
import torch

from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.forecast import model_size
from grpo_ext.preflight.proposal import Proposal
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.memory import memory_estimate

LETTERS = "ABCDEFGHIJ"
TINY = 5_000_000  # models with fewer parameters get the sizes and learning rate of the demos
MEMORY_SHARE = 0.85  # the share of the memory that an estimate may fill

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
    "like_reference": ("", 256),
    "judge": ("", 256),
}


def user_prompt(proposal: Proposal, names: list[str]) -> str:
    """Return the user prompt as a template of columns; for the reward `choice`, add the options.

    `names` are the columns of the data. Options are columns such as `A` or `option_a`.
    """
    question = proposal.prompt if "{" in proposal.prompt else f"{{{proposal.prompt}}}"
    lines = [question]
    if proposal.reward == "choice":
        options = [name for name in names if re.fullmatch(rf"(?i)(?:option_?)?[{LETTERS}]", name)]
        for letter, name in zip(LETTERS, sorted(options), strict=False):
            lines.append(f"{letter}) {{{name}}}")
    return "\n".join(lines)


def recipe_of(
    proposal: Proposal, rows: list[Row], data: str, model: str, folder: str, lora: bool
) -> dict[str, Any]:
    """Return the values of the recipe, with sizes that should fit this machine.

    Args:
        proposal: the prompt and the reward.
        rows: the first rows of the data.
        data: the data file, or the id of a data set.
        model: the folder or id of the model.
        folder: the folder in which the recipe and its files are written.
        lora: whether to train an adapter.
    """
    system, max_tokens = REWARD_PROMPTS[proposal.reward]
    values: dict[str, Any] = {
        "model_name_or_path": model,
        "output_dir": f"{folder}/run",
        "task": "prompts",
        "dataset_name": data,
    }
    prompt = rows[0].get(proposal.prompt)
    if isinstance(prompt, list):  # chat messages
        values["prompt_column"] = proposal.prompt
        if prompt[0].get("role") == "system":
            system = ""
    else:
        values["user_prompt"] = user_prompt(proposal, list(rows[0]))
    if proposal.answer_column:
        values["answer_column"] = next(iter(proposal.columns), proposal.answer_column)
    elif any(name != source for name, source in proposal.columns.items()):
        values["rename_columns"] = proposal.columns
    if proposal.reward != "judge":
        values["reward_plugins"] = [f"{folder}/rewards.py"]
    reward: str | dict[str, Any] = proposal.reward
    if proposal.options:
        reward = {"name": proposal.reward, **proposal.options}
    values |= {"system_prompt": system or None, "reward_funcs": [reward]}
    return values | sizes(values, max_tokens, lora)


def sizes(values: dict[str, Any], max_tokens: int, lora: bool) -> dict[str, Any]:
    """Return the recipe's sizes and its learning rate.

    A step has 64 completions. The micro-batch is the largest that fits in memory by estimate, the
    smallest if none fits, and the largest of all if the size of the model is unknown.

    Args:
        values: the other values of the recipe.
        max_tokens: maximum length of a completion in tokens; at most 64 for a tiny model.
        lora: whether to train an adapter.
    """
    memory = psutil.virtual_memory().available
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
    settings: dict[str, Any] = {
        "num_generations": 8,
        "max_completion_length": max_tokens,
        "max_steps": 200,
        "logging_steps": 1,
    }
    if lora:
        settings |= {"use_peft": True, "lora_target_modules": "all-linear"}
    for micro_batch, checkpointing in ((64, False), (32, False), (32, True), (16, True), (8, True)):
        settings |= {
            "per_device_train_batch_size": micro_batch,
            "gradient_accumulation_steps": 64 // micro_batch,
            "gradient_checkpointing": checkpointing,
        }
        recipe = load_recipe(None, {**values, **settings}, num_processes=1)
        v = recipe.flat
        size = model_size(v, recipe.model)
        if size is None:
            break
        if memory_estimate(size, v, batch_of(v, 1), prompt=512)["total"] < MEMORY_SHARE * memory:
            break
    settings["learning_rate"] = 1e-5 if lora else 1e-6
    if size is not None and size.parameters < TINY:
        settings["learning_rate"] = 4e-4
        settings["max_completion_length"] = min(max_tokens, 64)
    return settings
