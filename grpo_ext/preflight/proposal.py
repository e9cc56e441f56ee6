"""Propose a prompt and a reward that fit the rows of a data file."""

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_ext.common.columns import ANSWERS, CONTEXTS, answer_column
from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.rendered_rows import MAX_SHARE, ends_with_answer, is_identifier, share_of
from grpo_ext.rewards.judge_client import model_at
from grpo_ext.rewards.quantity import number
from grpo_ext.tasks.base import template_fields
from grpo_ext.tasks.prompts import value_at
from grpo_ext.tasks.sharegpt import chat_messages

# usual names of the column that contains the question
QUESTIONS = (
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
TESTS = ("tests", "test_list", "test_cases", "unit_tests")


@dataclass
class Proposal:
    """A prompt and a reward that fit the rows of a data file."""

    prompt: str  # the column of the question, or a template of several columns
    reward: str
    columns: dict[str, str]  # a column that the reward reads -> a column of the data
    reason: str  # why the reward fits, as a clause
    options: dict[str, Any] = field(default_factory=dict)  # options of the reward
    guessed: bool = False  # whether no column has the usual name of a question
    # the column for the assistant's last message, which is cut from the prompt
    answer_column: str | None = None


def propose(rows: list[Row], prompt: str | None = None) -> Proposal:
    """Propose a prompt and a reward for rows.

    Args:
        rows: the first rows of a data file.
        prompt: the question, as a column or a template of columns in braces; `None`: choose a
            column.

    Raises:
        ValueError: if there is no row, or no column can be the question.
    """
    if not rows:
        raise ValueError("the data has no rows.")
    rows = [with_messages(row) for row in rows]
    names = list(rows[0])
    is_countdown = {"nums", "target"} <= set(names)
    question = usual_question(rows) if prompt is None else prompt
    guessed = False
    if question is None:
        texts = [name for name in names if is_text_column(rows, name)]
        if texts:
            question = max(texts, key=lambda name: sum(len(row[name]) for row in rows))
            guessed = True
        elif is_countdown:
            question = COUNTDOWN
        else:
            raise ValueError(
                "No column can be the prompt, because none consists of texts that could be "
                f"questions. The columns are {', '.join(names)}. Name the column of the question "
                "`prompt` or `question`."
            )
    answer = None
    if all(has_answer(row.get(question)) for row in rows):
        answer = "solution"
        rows = [{**row, answer: row[question][-1]["content"]} for row in rows]
    used = {question}
    if "{" in question and not is_countdown:
        used = template_fields(question)
    others = [name for name in rows[0] if name not in used]
    proposal = propose_reward(question, rows, others)
    contexts = [name for name in CONTEXTS if name in others and is_text_column(rows, name)]
    if prompt is None and contexts and isinstance(rows[0].get(question), str):
        # such as Alpaca's `input` in addition to its `instruction`
        question = "\n\n".join(f"{{{name}}}" for name in (question, *contexts))
    return replace(proposal, prompt=question, guessed=guessed, answer_column=answer)


def with_messages(row: Row) -> Row:
    """Return a row with its ShareGPT conversations converted to chat messages."""
    return {name: chat_messages(value) for name, value in row.items()}


def usual_question(rows: list[Row]) -> str | None:
    """Return the first of `QUESTIONS` that names a column, skipping columns of identifiers.

    `None` if there is none.
    """
    for name in QUESTIONS:
        if name in rows[0] and not is_identifier_column(rows, name):
            return name
    return None


def is_text_column(rows: list[Row], name: str) -> bool:
    """Return whether a column contains only texts, not all empty and not mostly identifiers."""
    cells = [row.get(name) for row in rows]
    if not all(isinstance(cell, str) for cell in cells) or not any(cells):
        return False
    return not is_identifier_column(rows, name)


def is_identifier_column(rows: list[Row], name: str) -> bool:
    """Return whether most values of a column are identifiers, such as UUIDs."""
    return share_of(is_identifier(str(row.get(name))) for row in rows) > MAX_SHARE


def has_answer(prompt: object) -> bool:
    """Return whether a prompt is a list of chat messages that ends with the assistant's answer."""
    return isinstance(prompt, list) and bool(prompt) and ends_with_answer(prompt)


def propose_reward(prompt: str, rows: list[Row], names: list[str]) -> Proposal:
    """Propose a reward, chosen by the names and values of the columns that it may read.

    Args:
        prompt: the prompt of the proposal.
        rows: the first rows.
        names: the columns that a reward may read.
    """
    tests = first_of(TESTS, names)
    if tests:
        return Proposal(prompt, "code", {"tests": tests}, f"{tests} has tests")
    if "json_schema" in names:
        columns = {"json_schema": "json_schema"}
        return Proposal(prompt, "json_schema", columns, "json_schema has schemas")
    if {"nums", "target"} <= set(names):
        return Proposal(prompt, "countdown", {}, "nums and target are a Countdown problem")
    if {"instruction_id_list", "kwargs"} <= set(names):
        reason = "instruction_id_list and kwargs are verifiable instructions, as in IFEval"
        return Proposal(prompt, "instructions", {}, reason)
    answer = first_of(ANSWERS, names)
    if not answer:
        answer = answer_column({name: rows[0][name] for name in names})
    answers: list[str] = []
    if answer:
        answers = [str(value_at(row, answer)).strip() for row in rows]
    if not answer or not all(answers):
        reason = "no column has an answer that a rule can judge"
        return Proposal(prompt, "like_reference", {}, reason)
    columns = {"solution": answer}
    if all(re.fullmatch(r"\(?[A-J]\)?\.?", text) for text in answers):
        return Proposal(prompt, "choice", columns, f"{answer} has letters")
    if any("####" in text or "\\boxed" in text or "\\frac" in text for text in answers):
        reason = f"{answer} has marked or written-out solutions"
        return Proposal(prompt, "accuracy", columns, reason)
    if all(len(text) < 100 and number(text) for text in answers):
        return Proposal(prompt, "number", columns, f"{answer} has numbers")
    if statistics.median(len(text.split()) for text in answers) <= 5:
        reason = f"{answer} has short texts"
        return Proposal(prompt, "exact", columns, reason, options={"ignore_case": True})
    reason = f"{answer} has long texts, which no rule can judge"
    return Proposal(prompt, "like_reference", {"reference": answer}, reason)


def with_judge(proposal: Proposal, url: str, folder: str) -> Proposal:
    """Return a proposal with a server's model as the judge, instead of `like_reference`.

    Args:
        proposal: a proposal with the reward `like_reference`.
        url: the URL of an OpenAI-compatible server.
        folder: the folder that will contain `rubric.md`.

    Raises:
        ConnectionError: if the server does not respond.
        ValueError: if the URL is invalid, or the server does not report the name of its model.
    """
    model = model_at(url)
    columns = {}
    if proposal.columns:
        columns["solution"] = proposal.columns["reference"]
    return replace(
        proposal,
        reward="judge",
        columns=columns,
        reason=f"{proposal.reason}, but {model} can",
        options={"url": url, "model": model, "rubric": f"{folder}/rubric.md"},
    )


def first_of(candidates: Iterable[str], names: list[str]) -> str | None:
    return next((name for name in candidates if name in names), None)
