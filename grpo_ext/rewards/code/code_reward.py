"""The reward `code`: programs that a model writes, judged by tests whose expected values they never see."""

import ast
import json
import re
from functools import lru_cache
from typing import Any, Literal

from grpo_ext.rewards.answers import last_answer, without_thoughts
from grpo_ext.rewards.code.sandbox import plain, run
from grpo_ext.rewards.registry import register

MAX_PROGRAM = 50_000  # characters
_BLOCK = re.compile(r"```(?:python|py|Python)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


@register("code", needs_cpu=True)
def code(
    completions: list[str],
    tests: list[Any],
    *,
    partial: bool = False,
    seconds: float = 3.0,
    megabytes: int = 512,
    isolation: Literal["namespaces", "none"] = "namespaces",
) -> list[float]:
    """1 if the program passes all tests of its row, else 0.

    The program is the last code block, else the `<answer>` block, else the whole completion, without thoughts. It has only the
    standard library, and runs in new Linux namespaces: it has no network, sees no other process, and has only files of its own,
    in memory. Where the kernel does not allow that, rows stay unscored, unless `isolation: none` runs programs with the rights
    of the trainer.

    Args:
        tests: a list of asserts, `["assert f(2) == 3"]`, or of inputs with outputs, `[{"input": "2", "output": "3"}]`, also as
            JSON. The right side of `==` is evaluated without the program, which cannot read it. Other asserts are evaluated
            beside the program, and a program could cheat on them.
        partial: whether the score is the share of tests that pass.
        seconds: limit of a run; all asserts are one run, and each input is one.
        megabytes: limit of the memory of a run.
        isolation: "namespaces" or "none".
    """
    how = {"seconds": seconds, "megabytes": megabytes, "isolated": isolation != "none"}
    shares = [
        share_passed(program_of(text), listed(given), how)
        for text, given in zip(completions, tests, strict=True)
    ]
    return [share if partial else float(share == 1.0) for share in shares]


def program_of(completion: str) -> str:
    """Return the program in a completion."""
    text = without_thoughts(completion)
    blocks = _BLOCK.findall(text)
    return (blocks[-1] if blocks else last_answer(text) or text)[:MAX_PROGRAM]


def listed(tests: Any) -> list[Any]:
    """Return the tests as a list; `ValueError` for anything else."""
    found = tests
    if isinstance(tests, str):
        try:
            found = json.loads(tests)
        except ValueError:
            found = plain(tests)  # a list as Python writes it
    if not isinstance(found, list) or not found:
        raise ValueError(
            f"code: tests must be a list of asserts, or of mappings with input and output; got {tests!r:.80}."
        )
    return found


def share_passed(program: str, tests: list[Any], how: dict[str, Any]) -> float:
    """Return the share of tests that a program passes."""
    if all(isinstance(test, dict) for test in tests):
        ran = [
            (run(program, stdin=str(test["input"]), **how), str(test["output"])) for test in tests
        ]
        passed = [
            not found.error and lines(found.printed) == lines(output) for found, output in ran
        ]
        return sum(passed) / len(passed)
    asked = questions(tuple(map(str, tests)), tuple(how.items()))
    if asked is None:
        raise TimeoutError(
            "code: the right sides of the tests were not evaluated within the limits of time and memory."
        )
    values = run(program, expressions=tuple(expression for expression, _ in asked), **how).values
    passed = [
        value is not None and plain(value) == gold
        for value, (_, gold) in zip(values, asked, strict=False)
    ]
    return sum(passed) / len(asked)  # without values where the program was killed


@lru_cache(maxsize=1024)
def questions(
    tests: tuple[str, ...], how: tuple[tuple[str, Any], ...]
) -> list[tuple[str, Any]] | None:
    """Return for each assert an expression that is evaluated beside the program, and the value that it must have.

    `None` if the right sides were not evaluated within the limits.
    """
    sides = [compared(test) for test in tests]
    asked = tuple(right for _, right, _ in sides if right)
    values = run("", expressions=asked, **dict(how)).values  # without the program
    if len(values) < len(asked):
        return None
    known = iter(values)
    golds = [next(known, None) if right else None for _, right, _ in sides]
    return [
        (f"bool({whole})", True) if gold is None else (left, plain(gold))
        for (left, _, whole), gold in zip(sides, golds, strict=True)
    ]


def compared(test: str) -> tuple[str, str | None, str]:
    """Return the sides of `assert left == right`, else no right side, and the whole condition; `ValueError` for no assert."""
    try:
        [node] = ast.parse(test.strip()).body
    except (SyntaxError, ValueError):
        node = None
    if not isinstance(node, ast.Assert):
        raise ValueError(f"code: {test!r:.80} is no assert: write assert f(2) == 3.")
    match node.test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return ast.unparse(left), ast.unparse(right), ast.unparse(node.test)
    return "", None, ast.unparse(node.test)


def lines(text: str) -> list[str]:
    """Return the lines of an output without white space at their ends, and without empty lines at its end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
