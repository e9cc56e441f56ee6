"""The prompt and reward for a data file, proposed by `grpo-ext init` or chosen by the user."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.gold_answers import is_blank
from grpo_ext.preflight.proposed_reward import TESTS, UNWRITTEN, find_golds, first_of
from grpo_ext.preflight.rendered_rows import is_identifier
from grpo_ext.rewards.judge_client import model_at
from grpo_ext.rewards.registry import lookup
from grpo_ext.rewards.reward_columns import needed_columns
from grpo_ext.rewards.reward_specs import find
from grpo_ext.tasks.base import template_columns
from grpo_ext.tasks.prompts import TO_DO

INDICES = ("id", "idx", "index")  # names of columns that number the rows


@dataclass
class Proposal:
    """A prompt and a reward that fit the rows of a data file."""

    prompt: str  # the column of the question, or a template with columns in braces
    reward: str  # the name of the reward
    columns: dict[str, str]  # maps each column that the reward reads to a column of the data
    reason: str  # why the reward fits, as a clause
    options: dict[str, Any] = field(default_factory=dict)  # options of the reward
    # the column to which the assistant's last message is moved from the prompt
    answer_column: str | None = None
    # questions that the user has to answer before the recipe can be used
    questions: list[str] = field(default_factory=list)


def columns_of(prompt: str) -> list[str]:
    """Return the columns that `prompt`, a column or a template, uses.

    Raises:
        ValueError: if the braces of the template do not match.
    """
    return template_columns(prompt) if "{" in prompt else [prompt]


def columns_for(reward: str, proposal: Proposal, rows: Sequence[Row]) -> dict[str, str] | None:
    """Return which column of the data to use for each column that a reward requires.

    Args:
        reward: the name of a registered reward, or `UNWRITTEN`.
        proposal: the proposal, whose prompt has been chosen.
        rows: the first rows.

    Returns:
        A mapping from the reward's columns to columns of the data, or `None` if the data lacks a
        required column. For `UNWRITTEN`, it maps `reference` to the column of the gold answers, or
        is empty if there is none.
    """
    if reward == UNWRITTEN:
        gold = gold_column(proposal, rows)
        return {} if gold is None else {"reference": gold}
    columns = {}
    for name in lookup(reward).columns:
        source = proposal.columns.get(name)
        if source is None and name == "solution":
            source = gold_column(proposal, rows)
        elif source is None and name == "tests":
            source = first_of(TESTS, list(rows[0]))
        elif source is None and name in rows[0]:
            source = name
        if source is None:
            return None
        columns[name] = source
    return columns


def columns_for_function(function: str, proposal: Proposal, rows: Sequence[Row]) -> dict[str, str]:
    """Return which column of the data to use for each column that a user's reward function needs.

    If the rows lack `solution` or `reference`, the column of the gold answers, if there is one,
    takes its place. Other columns that the rows lack are left out.

    Args:
        function: the function, as `file.py:function` or `package.module:function`.
        proposal: the proposal, whose prompt has been chosen.
        rows: the first rows.

    Raises:
        ValueError: if there is no such function, or it is not a reward.
    """
    gold = gold_column(proposal, rows)
    columns = {}
    for name in needed_columns(find(function, {})):
        if name in rows[0]:
            columns[name] = name
        elif name in ("solution", "reference") and gold is not None:
            columns[name] = gold
    return columns


def possible_answers(proposal: Proposal, rows: Sequence[Row]) -> list[str]:
    """Return the columns that may contain the answers, in the order of the data.

    In such a column, most rows have a string or a number that is neither blank nor an identifier.
    Columns that the prompt uses or that number the rows (`INDICES`) are left out. A prompt with a
    `TO DO` will be changed by the user, so only its first column counts as used.
    """
    prompt = proposal.prompt
    used = columns_of(prompt)
    if TO_DO in prompt:
        used = [min(used, key=lambda name: prompt.find(f"{{{name}"))]
    names = []
    for name in rows[0]:
        if name in used or name.lower() in INDICES:
            continue
        answers = 0
        for row in rows:
            value = row.get(name)
            is_answer = isinstance(value, str | int | float) and not is_blank(value)
            answers += is_answer and not is_identifier(str(value))
        if answers > len(rows) / 2:
            names.append(name)
    return names


def gold_column(proposal: Proposal, rows: Sequence[Row]) -> str | None:
    """Return the column of the gold answers, or `None` if there is none.

    This is the column that the proposal uses as `solution` or `reference`. If the proposal uses
    neither, it is the column that `find_golds` chooses from those that the prompt does not use.
    """
    for name in ("solution", "reference"):
        if name in proposal.columns:
            return proposal.columns[name]
    used = columns_of(proposal.prompt)
    golds = find_golds(list(rows), [name for name in rows[0] if name not in used])
    return None if golds is None else golds.column


def with_reward(proposal: Proposal, reward: str, columns: dict[str, str]) -> Proposal:
    """Return a copy of a proposal with the reward that the user chose, without reward options.

    `answer_column` is renamed if the new reward reads the same data column under another name.

    Args:
        proposal: the proposal to copy.
        reward: the name of the reward.
        columns: maps each column that the reward reads to a column of the data.
    """
    answer = proposal.answer_column
    source = None if answer is None else proposal.columns.get(answer)
    if source is not None:  # the assistant's message gets the name that the new reward reads
        answer = next((name for name in columns if columns[name] == source), answer)
    return replace(
        proposal,
        reward=reward,
        columns=columns,
        answer_column=answer,
        reason="it was chosen",
        options={},
    )


def with_judge(proposal: Proposal, url: str, folder: str) -> Proposal:
    """Return a copy of a proposal in which a model on a server judges the completions.

    Args:
        proposal: a proposal with an unwritten reward, which the reward `judge` replaces.
        url: the URL of an OpenAI-compatible server.
        folder: the folder that will contain `rubric.md`.

    Raises:
        ConnectionError: if the server does not respond.
        ValueError: if the URL is invalid, or the server requires an API key or does not report the
            name of its model.
    """
    model = model_at(url)
    gold = next(iter(proposal.columns.values()), None)
    columns = {} if gold is None else {"solution": gold}
    return replace(
        with_reward(proposal, "judge", columns),
        reason=f"{proposal.reason}; {model} grades the completions instead",
        options={"url": url, "model": model, "rubric": f"{folder}/rubric.md"},
    )
