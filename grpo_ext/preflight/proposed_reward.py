"""Choose a reward that fits the columns of the data, such as tests, gold answers or references."""

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from grpo_ext.common.columns import ANSWERS, answer_column
from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.gold_answers import is_blank, is_structured
from grpo_ext.preflight.option_columns import Options
from grpo_ext.preflight.rendered_rows import ANSWER_MARKS, MAX_SHARE, share_of
from grpo_ext.rewards.accuracy import gold_answer
from grpo_ext.rewards.answer_kinds import letter_of_gold
from grpo_ext.rewards.code.asserts import tests_as_list
from grpo_ext.rewards.quantity import number
from grpo_ext.rewards.texts import is_text
from grpo_ext.tasks.prompts import value_at

UNWRITTEN = "my_reward"  # a reward that the user has to write
TESTS = ("tests", "test_list", "test_cases", "unit_tests", "input_output", "public_tests", "test")
MOST = 0.9  # share of the gold answers that must be of the same kind
FEW_WORDS = 5  # median number of words up to which answers can be compared as strings
FEW_CHARACTERS = 40  # the same for characters, since some languages write no spaces
FORMULA = 200  # maximum number of characters of a formula
MARKS = (*ANSWER_MARKS, "nswer:", "<answer>", "\\frac")
# A word that a formula does not contain, since it is neither a LaTeX command nor a function.
WORD = re.compile(r"(?<!\\)\b(?!(?:sin|cos|tan|log|exp|mod|sqrt|and|pmatrix)\b)[^\W\d_]{3,}")


@dataclass(frozen=True)
class RewardChoice:
    """A reward, and why it fits.

    Attributes:
        name: the name of the reward.
        reason: why the reward fits, as a clause.
        columns: maps each column that the reward reads to a column of the data.
        options: the options of the reward.
        question: a question that the data leaves open, so that the user must answer it; `None` if
            there is none.
    """

    name: str
    reason: str
    columns: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    question: str | None = None


@dataclass(frozen=True)
class Golds:
    """The gold answers of a dataset's rows.

    Attributes:
        column: the column that holds them, or `column.key` if they are entries of mappings in that
            column.
        values: the gold answers, without those that are missing, blank or mappings.
    """

    column: str
    values: list[Any]

    @property
    def texts(self) -> list[str]:
        """The gold answers as stripped strings; a list of right answers becomes its first entry."""
        texts = []
        for value in self.values:
            first = value[0] if isinstance(value, list) else value
            texts.append(str(first).strip())
        return texts

    @property
    def are_lists(self) -> bool:
        """Whether some rows have a list of right answers."""
        return any(isinstance(value, list) for value in self.values)


def choose_reward(
    rows: list[Row], names: list[str], options: Options | None, gold: str | None = None
) -> RewardChoice:
    """Choose a reward by the names and values of the columns that it may read.

    The name of the choice is `UNWRITTEN` if no reward fits.

    Args:
        rows: the first rows; at least one.
        names: the columns that a reward may read.
        options: the options of multiple-choice questions, if there are any.
        gold: the column of the gold answers, if the user has named it; other columns, such as
            `tests`, are then not considered.
    """
    if gold is None:
        choice = reward_by_names(rows, names)
        if choice is not None:
            return choice
    if options is not None:
        names = [name for name in names if name not in options.columns]
    golds = find_golds(rows, names, gold)
    if golds is None:
        reason = "no column with a usual name, such as answer or solution, has answers"
        return RewardChoice(UNWRITTEN, reason)
    return reward_for_golds(golds, options)


def reward_by_names(rows: list[Row], names: list[str]) -> RewardChoice | None:
    """Choose a reward by usual column names, such as `tests`; return `None` if there are none."""
    tests = first_of(TESTS, names)
    if tests:
        return reward_for_tests(rows, tests)
    if "json_schema" in names:
        return RewardChoice(
            "json_schema", "the column json_schema has schemas", keep("json_schema")
        )
    if {"nums", "target"} <= set(names):
        return RewardChoice("countdown", "the columns nums and target are a Countdown problem")
    if {"instruction_id_list", "kwargs"} <= set(names):
        reason = "instruction_id_list and kwargs are verifiable instructions, as in IFEval"
        return RewardChoice("instructions", reason)
    if {"chosen", "rejected"} <= set(names):
        return RewardChoice(
            UNWRITTEN,
            "chosen and rejected are preference pairs, which cannot score other completions: train "
            "a reward model on them, or use DPO",
        )
    if {"completion", "label"} <= set(names) and isinstance(rows[0]["label"], bool):
        return RewardChoice(
            UNWRITTEN, "label judges only the completion in its row, and cannot score others"
        )
    return None


def keep(name: str) -> dict[str, str]:
    """Return the mapping `{name: name}`, which keeps a column's name."""
    return {name: name}


def reward_for_tests(rows: list[Row], column: str) -> RewardChoice:
    """Return the reward `code`, or `UNWRITTEN` if `code` cannot run the tests in `column`.

    At least 90% of the rows (`MOST`) must have tests that `tests_as_list` can parse, and all of
    these must pass `are_tests`.
    """
    usable = []
    for row in rows:
        with suppress(ValueError):
            usable.append(tests_as_list(row.get(column)))
    if len(usable) < MOST * len(rows) or not all(map(are_tests, usable)):
        return RewardChoice(
            UNWRITTEN,
            f"the column {column} has tests in a form that the reward `code` cannot parse: write "
            "them as lists of asserts, or of mappings with input and output",
        )
    return RewardChoice("code", f"the column {column} has tests", {"tests": column})


def are_tests(tests: Sequence[object]) -> bool:
    """Return whether tests are assert statements, or mappings with `input` and `output`.

    If all tests are strings, it is enough that one of them contains an assert; the others may be
    imports.
    """
    if all(isinstance(test, str) for test in tests):
        return any("assert" in str(test) for test in tests)
    return all(isinstance(test, dict) and {"input", "output"} <= test.keys() for test in tests)


def find_golds(rows: list[Row], names: list[str], gold: str | None = None) -> Golds | None:
    """Return the gold answers of the first column whose answers a rule can judge.

    Only the column `gold` or, if it is `None`, columns with a usual name for answers are
    considered, and only if more than half of the rows have an answer in them. If no rule can judge
    any of these columns, return the gold answers of the first one. Return `None` if there is no
    such column.

    Args:
        rows: the first rows.
        names: the columns to consider.
        gold: the column to consider instead of `names`, if the user has named it.
    """
    if gold is not None:
        candidates = [gold]
    else:
        candidates = usual_names(ANSWERS, names)
        nested = answer_column({name: rows[0].get(name) for name in names})
        if nested is not None and nested not in candidates:
            candidates.append(nested)
    found = []
    for column in candidates:
        values = []
        for row in rows:
            with suppress(ValueError, KeyError):
                value = value_at(row, column)
                if not is_blank(value) and not isinstance(value, dict):
                    values.append(value)
        if len(values) > len(rows) / 2:
            found.append(Golds(column, values))
    for golds in found:
        if reward_for_golds(golds, None).name != UNWRITTEN:
            return golds
    return found[0] if found else None


def reward_for_golds(golds: Golds, options: Options | None) -> RewardChoice:
    """Choose a reward for gold answers, or `UNWRITTEN` if no rule can judge them.

    Args:
        golds: the gold answers; at least one, and none of them blank.
        options: the options of multiple-choice questions, if there are any.
    """
    column = golds.column
    texts = golds.texts
    columns = {"solution": column}
    if golds.are_lists:
        return reward_for_texts(golds)
    if most(letter_of_gold(text, None) for text in texts):
        return RewardChoice("choice", f"the column {column} has letters", columns)
    if options is not None and most(re.fullmatch("[0-9]", text) for text in texts):
        return reward_for_numbered_options(golds, options)
    if most(is_marked(text) for text in texts):
        return RewardChoice(
            "accuracy", f"the column {column} has marked or written-out solutions", columns
        )
    if most(len(text) < 100 and number(text) is not None for text in texts):
        return RewardChoice("number", f"the column {column} has numbers", columns)
    if share_of(is_formula(text) for text in texts) > MAX_SHARE:
        return RewardChoice("accuracy", f"the column {column} has formulas", columns)
    return reward_for_texts(golds)


def reward_for_texts(golds: Golds) -> RewardChoice:
    """Choose `exact` for short strings, and `UNWRITTEN` for long strings and for mappings.

    The median length decides whether strings are short. A single mapping, or the JSON text of one,
    is enough for `UNWRITTEN`.
    """
    column = golds.column
    if any(is_structured(value) or is_json(value) for value in golds.values):
        reason = f"the column {column} has mappings, which no rule can judge"
        return RewardChoice(UNWRITTEN, reason, {"reference": column})
    words = statistics.median(len(text.split()) for text in golds.texts)
    characters = statistics.median(map(len, golds.texts))
    if words <= FEW_WORDS and characters <= FEW_CHARACTERS:
        reason = f"the column {column} has short text"
        return RewardChoice("exact", reason, {"solution": column}, {"ignore_case": True})
    reason = f"the column {column} has long text, which no rule can judge"
    return RewardChoice(UNWRITTEN, reason, {"reference": column})


def is_json(gold: object) -> bool:
    """Return whether a gold answer is the JSON text of a mapping, or of a list that contains one.

    Function calls, for example, often have this form.
    """
    if not isinstance(gold, str) or not gold.startswith(("{", "[")):
        return False
    try:
        return is_structured(json.loads(gold))
    except (ValueError, RecursionError):
        return False


def reward_for_numbered_options(golds: Golds, options: Options) -> RewardChoice:
    """Return the reward `choice` for gold answers that are the numbers of options.

    The first option has the number 0 if any gold answer is 0. Otherwise, it has the number 1 if the
    largest gold answer equals the number of options in the row with the most options. If neither
    applies, `first_index` is not set, and the choice has a `question` for the user.
    """
    numbers = [int(text) for text in golds.texts if text.isdecimal()]
    reason = f"the column {golds.column} has the numbers of options"
    columns = {"solution": golds.column}
    if 0 in numbers:
        return RewardChoice("choice", reason, columns, {"first_index": 0})
    if max(numbers) == max(map(len, options.texts)):
        return RewardChoice("choice", reason, columns, {"first_index": 1})
    question = (
        f"Is the first option number 0 or 1 in {golds.column}? Set first_index to 0 or 1 in the "
        "reward `choice`."
    )
    return RewardChoice("choice", reason, columns, question=question)


def is_marked(text: str) -> bool:
    """Return whether a solution contains a marker of its final answer, or a LaTeX fraction."""
    return any(mark in text for mark in MARKS)


def is_formula(text: str) -> bool:
    """Return whether a string is a number or a formula that the reward `accuracy` can parse."""
    if number(text) is not None and text[:1] in "0123456789-+.$\\(":
        return True
    if len(text) > FORMULA or WORD.search(text):
        return False
    return gold_answer(text) is not None and not is_text(text)


def most(flags: Iterable[object]) -> bool:
    """Return whether at least 90% of `flags` (`MOST`) are true; `flags` must not be empty."""
    return share_of(map(bool, flags)) >= MOST


def first_of(candidates: Iterable[str], names: list[str]) -> str | None:
    """Return the column in `names` that matches the earliest candidate, or `None` if none does.

    Case is ignored, and spaces and hyphens count as underscores.
    """
    return next(iter(usual_names(candidates, names)), None)


def usual_names(candidates: Iterable[str], names: list[str]) -> list[str]:
    """Return the columns in `names` that match one of `candidates`, in the order of `candidates`.

    Case is ignored, and spaces and hyphens count as underscores: `Correct Answer` matches
    `correct_answer`.
    """
    plain = {re.sub("[ -]", "_", name).lower(): name for name in names}
    return [plain[name.lower()] for name in candidates if name.lower() in plain]
