"""Rewards for answers of one kind: exact text, a choice, a number, a regex match, JSON.

All rewards except `regex` judge the last `<answer>` block outside the thoughts (`<think>` blocks).
If there is none or it is empty, they judge all text outside the thoughts. Answers are cut to
100,000 characters; choices and numbers are searched for in the last 5,000 of them. For mathematics,
use `accuracy`.
"""

import json
import math
import re
from contextlib import suppress
from functools import lru_cache
from string import ascii_uppercase
from typing import Any, Literal

import regex

from grpo_ext.rewards.answers import answer_without_thoughts, code_blocks, last_boxed
from grpo_ext.rewards.quantity import number as read_number
from grpo_ext.rewards.registry import register

MAX_TEXT = 100_000  # maximum number of characters of an answer
MAX_TAIL = 5_000  # characters at the end of an answer that are searched for a choice or number
MAX_NUMBER = 100  # maximum length of a fraction or mixed number
PATIENCE = 0.5  # time limit of a search, in seconds
_NUMERAL = re.compile(r"-?[0-9]{1,30}(?:,[0-9]{3})*(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,30})?")
_ASKED = r"(?i:\banswer\b|\boption\b|\bchoice\b)[\s:*(]*(?:is[\s:*(]*)?"
_CHOSEN = re.compile(rf"{_ASKED}([A-Z])\b|\(([A-Z])\)|\b([A-Z])\b(?=[).:]|\s*$)")


def answer_of(completion: str) -> str:
    """Return the answer in a completion, cut to `MAX_TEXT` characters."""
    return answer_without_thoughts(completion)[:MAX_TEXT]


@register("exact")
def exact(completions: list[str], solution: list[Any], *, ignore_case: bool = False) -> list[float]:
    """1 if the answer equals the solution, apart from the amount of whitespace, else 0.

    Args:
        solution: the correct answer for each row, or a list of accepted answers.
        ignore_case: whether to ignore case, so that "paris" equals "Paris".
    """

    def plain(text: Any) -> str:
        words = " ".join(str(text).split())
        if ignore_case:
            return words.casefold()
        return words

    scores = []
    for completion, golds in zip(completions, solution, strict=True):
        if not isinstance(golds, list):
            golds = [golds]
        answer = plain(answer_of(completion))
        scores.append(float(answer in map(plain, golds)))
    return scores


@register("choice")
def choice(
    completions: list[str], solution: list[Any], *, first_index: Literal[0, 1] | None = None
) -> list[float | None]:
    r"""1 if the answer chooses the correct option, else 0.

    `None` if the solution is neither a letter nor, with `first_index`, the number of an option.

    If the last `\boxed{}` in the answer, or the whole answer if it has no box, is a single letter
    in upper or lower case, that letter is the choice; parentheses, `*`, `.` and `:` around it are
    ignored. Otherwise, the choice is the last single capital letter that follows "answer", "option"
    or "choice", is in parentheses, precedes `)`, `.` or `:`, or ends the answer.

    Args:
        solution: the letter of the correct option for each row, as in `B`, `(B)` or `B.`; with
            `first_index`, it may also be the option's number.
        first_index: the number of option A, for solutions that are option numbers. If `None`,
            solutions must be letters.
    """
    scores: list[float | None] = []
    for completion, gold in zip(completions, solution, strict=True):
        letter = letter_of_gold(gold, first_index)
        scores.append(None if letter is None else float(chosen(completion) == letter))
    return scores


def letter_of_gold(gold: object, first_index: int | None) -> str | None:
    """Return the letter of an option given as a letter or a number, or `None` for anything else.

    `first_index` is the number of option A. If it is `None`, only letters are accepted.
    """
    text = str(gold).strip(" ().").upper()
    if re.fullmatch("[A-Z]", text):
        return text
    if first_index is None or not re.fullmatch("[0-9]{1,2}", text):
        return None
    position = int(text) - first_index
    return ascii_uppercase[position] if 0 <= position < len(ascii_uppercase) else None


def chosen(completion: str) -> str | None:
    """Return the letter that a completion chooses, or `None` if it chooses none."""
    text = answer_of(completion)
    alone = (last_boxed(text) or text).strip(" ().*:\n")
    if len(alone) == 1 and alone.isascii() and alone.isalpha():
        return alone.upper()
    choices = list(_CHOSEN.finditer(text[-MAX_TAIL:]))
    if not choices:
        return None
    last = choices[-1]
    return last[1] or last[2] or last[3]


@register("number")
def number(
    completions: list[str], solution: list[Any], *, tolerance: float = 1e-6
) -> list[float | None]:
    """1 if the last number in the answer is close to the solution's, else 0.

    `None` if the solution contains no number. A fraction, a mixed number or a number in words, such
    as 3/4 or "three", is recognized only if the answer or solution consists of nothing else.

    Args:
        solution: a number for each row, or a string that contains one, such as `1,200` or `$3.50`.
        tolerance: the accepted difference relative to the larger of the two numbers: 0.01 accepts a
            difference of about one percent. If the solution is 0, the difference is absolute.
    """
    golds = [value_of(str(gold)) for gold in solution]
    return [
        close(value_of(answer_of(text)), gold, tolerance)
        for text, gold in zip(completions, golds, strict=True)
    ]


def value_of(text: str) -> float | None:
    """Parse a string as a single number, or else return the last decimal number in it.

    Fractions, mixed numbers and numbers in words are recognized only if they are the whole string
    and it has at most `MAX_NUMBER` characters. The last decimal number is searched for in the last
    `MAX_TAIL` characters. Return `None` if there is no number, or if it is too large for a float.
    """
    if len(text) <= MAX_NUMBER and (whole := read_number(text)):
        with suppress(OverflowError):
            return float(whole.value)
    numerals = _NUMERAL.findall(text[-MAX_TAIL:])
    if not numerals:
        return None
    value = float(numerals[-1].replace(",", ""))
    return value if math.isfinite(value) else None


def close(value: float | None, gold: float | None, tolerance: float) -> float | None:
    if gold is None:
        return None
    if value is None:
        return 0.0
    absolute = 0.0
    if gold == 0:
        absolute = tolerance
    return float(math.isclose(value, gold, rel_tol=tolerance, abs_tol=absolute))


@register("regex")
def regex_(completions: list[str], *, pattern: str, whole: bool = False) -> list[float | None]:
    """1 if the completion contains a match for the pattern, else 0; `None` if the search times out.

    The first 100,000 characters of the completion are searched, including thoughts. The time limit
    is 0.5 s per completion.

    Args:
        pattern: a pattern in the syntax of the package `regex`, which extends Python's `re`; `.`
            also matches a line break.
        whole: whether the pattern must match the whole completion.
    """
    compiled = regex.compile(pattern, regex.DOTALL)
    return [matches(compiled, text[:MAX_TEXT], whole) for text in completions]


def matches(pattern: Any, text: str, whole: bool) -> float | None:
    try:
        if whole:
            match = pattern.fullmatch(text, timeout=PATIENCE)
        else:
            match = pattern.search(text, timeout=PATIENCE)
    except TimeoutError:
        return None
    return float(match is not None)


@register("json_schema", needs_cpu=True)
def json_schema(completions: list[str], json_schema: list[Any]) -> list[float]:
    """1 if the answer is JSON that matches the row's schema, 0.2 if it is any other JSON, else 0.

    The JSON is the last closed code block in the answer that is marked as JSON or has no language.
    If there is none, it is the whole answer. The package jsonschema must be installed.

    Args:
        json_schema: the JSON Schema for each row, as a mapping or a JSON string. An exception is
            raised if a schema is invalid. If the answer is JSON, an exception is also raised if the
            comparison needs a `$ref` to another document, because none is downloaded.
    """
    scores = []
    for text, schema in zip(completions, json_schema, strict=True):
        if not isinstance(schema, str):
            schema = json.dumps(schema)
        scores.append(fits(answer_of(text), validator(schema)))
    return scores


def fits(answer: str, schema: Any) -> float:
    """Return the score of an answer; `schema` is a validator from the package jsonschema."""
    for block in code_blocks(answer):
        if block.language in ("", "json") and block.is_closed:
            answer = block.content  # the last one counts
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        return 0.0
    with suppress(RecursionError):
        if schema.is_valid(document):
            return 1.0
    return 0.2


@lru_cache(maxsize=256)
def validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator
    from referencing.jsonschema import EMPTY_REGISTRY

    parsed = json.loads(schema)
    Draft202012Validator.check_schema(parsed)
    # without a registry, jsonschema would download the documents that a `$ref` names
    return Draft202012Validator(parsed, registry=EMPTY_REGISTRY)
