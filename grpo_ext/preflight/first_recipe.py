"""A first recipe for a data file and a model: prompt, reward, sizes and learning rate, from the
rows and this machine.
"""

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
import torch

from grpo_ext.common.columns import ANSWERS, CONTEXTS, answer_column
from grpo_ext.preflight.forecast import model_size
from grpo_ext.preflight.rendered_rows import MOST, ends_with_answer, is_identifier, share_of
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.memory import memory_estimate
from grpo_ext.rewards.judge_client import model_at
from grpo_ext.rewards.quantity import number
from grpo_ext.tasks.base import template_fields
from grpo_ext.tasks.prompts import value_at
from grpo_ext.tasks.sharegpt import chat_messages

Row = dict[str, Any]
PROMPTS = (
    "prompt",
    "messages",
    "conversations",
    "question",
    "problem",
    "instruction",
    "query",
    "task",
    "text",
    "input",
)
COUNTDOWN = (
    "Use the numbers {nums}, each exactly once, with + - * / and parentheses, to make {target}."
)
TESTS = "tests", "test_list", "test_cases", "unit_tests"
LETTERS = "ABCDEFGHIJ"
TINY = 5_000_000  # parameters of a model for which the sizes and learning rate of the demos fit
SHARE = 0.85  # of the memory that an estimate may fill

ASK = {  # reward -> the system prompt, and the limit of a completion in tokens
    "code": ("Think, then write the program in one ```python block.", 1024),
    "json_schema": ("Answer in JSON.", 512),
    "countdown": ("Think, then give the expression in <answer> tags.", 512),
    "choice": ("Think, then end with: The answer is (X).", 512),
    "accuracy": ("Think step by step. Put the final answer in \\boxed{}.", 1024),
    "number": ("Think, then give the number in <answer> tags.", 512),
    "exact": ("Think, then give nothing but the answer in <answer> tags.", 256),
    "like_reference": ("", 256),
    "judge": ("", 256),
}


@dataclass
class Found:
    """What the rows have."""

    prompt: str  # the column of the question, or the template of several columns
    reward: str
    columns: dict[str, str]  # a column that the reward reads -> a column of the data
    why: str
    options: dict[str, Any] = field(default_factory=dict)  # of the reward
    guessed: bool = False  # no column has the usual name of a question
    answer_column: str | None = None  # for the assistant's last message, which leaves the prompt


def look(rows: list[Row], prompt: str | None = None) -> Found:
    """Return what fits these rows, with `prompt` as the question: a column, or a template of
    columns in braces.

    `ValueError` if no column can be one.
    """
    if not rows:
        raise ValueError("the data has no row.")
    rows = [{name: chat_messages(value) for name, value in row.items()} for row in rows]
    names = list(rows[0])
    known = [name for name in PROMPTS if name in names and not is_identifier_column(rows, name)]
    texts = [name for name in names if is_text_column(rows, name)]
    is_countdown = {"nums", "target"} <= {*names}
    guessed = False
    if prompt is not None:
        asked = prompt
    elif known:
        asked = known[0]
    elif is_countdown and not texts:
        asked = COUNTDOWN
    elif texts:
        asked = max(texts, key=lambda name: statistics.mean(len(row[name]) for row in rows))
        guessed = True
    else:
        raise ValueError(
            f"No column can be a prompt: {', '.join(names)}. Name one of text `prompt` or "
            "`question`."
        )
    answer = answer_in_messages(rows, asked)
    if answer is not None:
        rows = [{**row, answer: row[asked][-1]["content"]} for row in rows]
    used = template_fields(asked) if "{" in asked and not is_countdown else {asked}
    others = [name for name in rows[0] if name not in used]
    reward = reward_for(rows, others)
    contexts = [name for name in CONTEXTS if name in others and is_text_column(rows, name)]
    if prompt is None and contexts and asked in names and isinstance(rows[0][asked], str):
        # such as Alpaca's `input` beside its `instruction`
        asked = "\n\n".join(f"{{{name}}}" for name in (asked, *contexts))
    return replace(Found(asked, *reward), guessed=guessed, answer_column=answer)


def is_text_column(rows: list[Row], name: str) -> bool:
    """Return whether a column has texts, other than identifiers, that are not all empty."""
    values = [row.get(name) for row in rows]
    if not all(isinstance(value, str) for value in values) or not any(values):
        return False
    return not is_identifier_column(rows, name)


def is_identifier_column(rows: list[Row], name: str) -> bool:
    """Return whether a column has mostly identifiers, such as UUIDs."""
    return share_of(is_identifier(str(row.get(name))) for row in rows) > MOST


def answer_in_messages(rows: list[Row], asked: str) -> str | None:
    """Return a name for the column of the assistant's last message, if the prompts end with one;
    else `None`.
    """
    if not all(isinstance(row.get(asked), list) and row[asked] for row in rows):
        return None
    return "solution" if all(ends_with_answer(row[asked]) for row in rows) else None


def reward_for(rows: list[Row], names: list[str]) -> tuple[Any, ...]:
    """Return the reward that reads one of these columns, the columns that it reads, why, and its
    options if it has any.
    """
    if tests := first(TESTS, names):
        return "code", {"tests": tests}, f"{tests} has tests"
    if "json_schema" in names:
        return "json_schema", {"json_schema": "json_schema"}, "json_schema has schemas"
    if {"nums", "target"} <= {*names}:
        return "countdown", {}, "nums and target are a Countdown problem"
    own = {name: rows[0][name] for name in names}
    answer = first(ANSWERS, names) or answer_column(own)
    values = [str(value_at(row, answer)).strip() for row in rows] if answer else []
    if not answer or not all(values):
        return "like_reference", {}, "no column has an answer that a rule can judge"
    column = {"solution": answer}
    if all(re.fullmatch(r"\(?[A-J]\)?\.?", value) for value in values):
        return "choice", column, f"{answer} has letters"
    if any("####" in value or "\\boxed" in value or "\\frac" in value for value in values):
        return "accuracy", column, f"{answer} has marked or written-out solutions"
    if all(number(value) for value in values if len(value) < 100) and max(map(len, values)) < 100:
        return "number", column, f"{answer} has numbers"
    if statistics.median(len(value.split()) for value in values) <= 5:
        return "exact", column, f"{answer} has short texts", {"ignore_case": True}
    return (
        "like_reference",
        {"reference": answer},
        f"{answer} has long texts, which no rule can judge",
    )


def judged(found: Found, url: str, folder: str) -> Found:
    """Return the same with the model at `url` as judge; `ConnectionError` or `ValueError` if it
    does not say its name.
    """
    columns = {"solution": found.columns["reference"]} if found.columns else {}
    options = {"url": url, "model": model_at(url), "rubric": f"{folder}/rubric.md"}
    why = f"{found.why}, and {options['model']} can"
    return replace(found, reward="judge", columns=columns, why=why, options=options)


def first(known: Iterable[str], names: list[str]) -> str | None:
    return next((name for name in known if name in names), None)


def template(found: Found, names: list[str]) -> str:
    """Return the user's prompt as a template of columns, with the options of a choice."""
    options = [name for name in names if re.fullmatch(rf"(?i)(?:option_?)?[{LETTERS}]", name)]
    asked = found.prompt if "{" in found.prompt else f"{{{found.prompt}}}"
    lines = [
        asked,
        *(f"{letter}) {{{name}}}" for letter, name in zip(LETTERS, sorted(options), strict=False)),
    ]
    return "\n".join(lines if found.reward == "choice" else lines[:1])


def recipe_of(
    found: Found, rows: list[Row], data: str, model: str, folder: str, lora: bool
) -> dict[str, Any]:
    """Return the values of the recipe, with sizes that fit this machine by estimate."""
    system, limit = ASK[found.reward]
    ready = isinstance(rows[0].get(found.prompt), list)  # chat messages
    values: dict[str, Any] = {"model_name_or_path": model, "output_dir": f"{folder}/run"}
    values |= {"task": "prompts", "dataset_name": data}
    if ready and rows[0][found.prompt][0].get("role") == "system":
        system = ""
    values |= (
        {"prompt_column": found.prompt}
        if ready
        else {"user_prompt": template(found, list(rows[0]))}
    )
    if found.answer_column:
        values["answer_column"] = next(iter(found.columns), found.answer_column)
    elif found.columns and list(found.columns) != list(found.columns.values()):
        values["rename_columns"] = found.columns
    if found.reward != "judge":
        values["reward_plugins"] = [f"{folder}/rewards.py"]
    reward = {"name": found.reward, **found.options} if found.options else found.reward
    values |= {"system_prompt": system or None, "reward_funcs": [reward]}
    return values | sizes(values, limit, lora)


def sizes(values: dict[str, Any], limit: int, lora: bool) -> dict[str, Any]:
    """Return the sizes and the learning rate: the largest micro-batch that fits by estimate, 64
    completions in each step.
    """
    gpu = torch.cuda.is_available()
    room = (
        torch.cuda.get_device_properties(0).total_memory
        if gpu
        else psutil.virtual_memory().available
    )
    found: dict[str, Any] = {
        "num_generations": 8,
        "max_completion_length": limit,
        "max_steps": 200,
        "logging_steps": 1,
    }
    if lora:
        found |= {"use_peft": True, "lora_target_modules": "all-linear"}
    for size, checkpointing in ((64, False), (32, False), (32, True), (16, True), (8, True)):
        found |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": 64 // size}
        found["gradient_checkpointing"] = checkpointing
        recipe = load_recipe(None, {**values, **found}, 1)
        shape = model_size(recipe.flat, recipe.model)
        if (
            shape is None
            or memory_estimate(shape, recipe.flat, batch_of(recipe.flat, 1), 0, 512)["total"]
            < SHARE * room
        ):
            break
    tiny = shape is not None and shape.parameters < TINY
    found["max_completion_length"] = min(limit, 64) if tiny else limit
    return found | {"learning_rate": 4e-4 if tiny else 1e-5 if lora else 1e-6}
