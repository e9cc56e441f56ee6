"""The reward `code`: runs a model's program against tests and hides the expected values from it."""

import time
from typing import Any, Literal

from grpo_ext.rewards.answers import code_blocks, last_answer, without_thoughts
from grpo_ext.rewards.code.asserts import (
    Asserts,
    parse_asserts,
    tests_as_list,
    with_expected_texts,
)
from grpo_ext.rewards.code.sandbox import Answer, Job, Limits, run
from grpo_ext.rewards.registry import register

MAX_PROGRAM_CHARACTERS = 50_000
LANGUAGES = ("", "python", "python3", "py")  # of code blocks that may be the program


@register("code", needs_cpu=True)
def code(
    completions: list[str],
    tests: list[Any],
    *,
    partial: bool = False,
    seconds: float = 3.0,
    megabytes: int = 512,
    isolation: Literal["namespaces", "none"] = "namespaces",
    cheatable_asserts: Literal["allow", "refuse"] = "allow",
) -> list[float]:
    """1 if the program passes all tests of its row, else 0.

    The program is the last code block that has no language or is marked as Python. If there is
    none, it is the last `<answer>` block, or else the whole text. Thoughts are ignored, and the
    program is cut to 50,000 characters. It can import only the standard library, and runs in Linux
    namespaces that bubblewrap creates: it has no network, sees no other process, and can write
    files only in memory. If the machine does not allow this, `MachineFault` is raised, so that
    training leaves the row unscored. With `isolation` "none", programs are not isolated.

    Args:
        tests: a list of asserts, `["assert f(2) == 3"]`, or of inputs with outputs, `[{"input":
            "2", "output": "3"}]` or `{"inputs": ["2"], "outputs": ["3"]}`. JSON text of such tests
            is accepted as well. Asserts may be accompanied by imports. A side of `==` that uses
            only builtins and these imports is evaluated without the program, so that the program
            cannot read it. Other asserts are evaluated with the program's own objects, so the
            program could cheat on them.
        partial: whether the score is the share of tests that pass, instead of 1 or 0.
        seconds: the wall-clock time limit for a program on all tests of the row together.
        megabytes: the memory limit for a program; at least 64.
        isolation: "namespaces", or "none" to run programs with the trainer's permissions.
        cheatable_asserts: "allow", or "refuse" to raise an error, so that training leaves the row
            unscored, if a program could cheat on one of the row's asserts.

    Raises:
        ValueError: if tests or options are invalid, or if a program could cheat on an assert and
            `cheatable_asserts` is "refuse".
        MachineFault: if the sandbox does not start.
        TimeoutError: if the expected values cannot be evaluated within the limits.
    """
    limits = Limits(seconds, megabytes, isolation != "none")
    scores = []
    for completion, row_tests in zip(completions, tests, strict=True):
        tests_of_row = tests_as_list(row_tests)
        refuses = cheatable_asserts == "refuse"
        passed = tests_passed(program_of(completion), tests_of_row, limits, refuses)
        share = sum(passed) / len(passed)
        scores.append(share if partial else float(share == 1.0))
    return scores


def program_of(completion: str) -> str:
    """Return the last code block, else the last `<answer>` block, else the whole completion.

    A code block must have no language, or one of `LANGUAGES` (case is ignored); otherwise, it is
    ignored. Thoughts are ignored, too, and an empty `<answer>` block counts as missing. At most
    `MAX_PROGRAM_CHARACTERS` characters are returned.
    """
    text = without_thoughts(completion)
    blocks = [block for block in code_blocks(text) if block.language in LANGUAGES]
    # an unclosed fence without a language is probably the closing one of an earlier block
    blocks = [block for block in blocks if block.is_closed or block.language] or blocks
    program = blocks[-1].content if blocks else last_answer(text) or text
    return program[:MAX_PROGRAM_CHARACTERS]


def tests_passed(
    program: str, tests: list[Any], limits: Limits, refuse_cheatable: bool = False
) -> list[bool]:
    """Return, for each test, whether a program passes it; each assert in a string is one test.

    Args:
        program: the source code of the program.
        tests: strings with asserts, or mappings with `input` and `output`.
        limits: the limits of the sandbox.
        refuse_cheatable: whether to raise an error for an assert on which a program could cheat.

    Raises:
        ValueError: if the tests are malformed, or if `refuse_cheatable` is true and a program could
            cheat on an assert.
        MachineFault: if the sandbox does not start.
        TimeoutError: if the expected values cannot be evaluated within the limits.
    """
    if all(isinstance(test, dict) for test in tests):
        return outputs_right(program, tests, limits)
    if not all(isinstance(test, str) for test in tests):
        raise ValueError(
            "code: the tests of a row must either all be asserts (strings) or all be mappings "
            "with `input` and `output`; got "
            f"{', '.join(sorted({type(test).__name__ for test in tests}))}."
        )
    return values_right(program, parse_asserts(tuple(tests)), limits, refuse_cheatable)


def outputs_right(program: str, tests: list[dict[str, Any]], limits: Limits) -> list[bool]:
    """Return, for each test, whether the program exits with code 0 and prints the expected output.

    Whitespace at the end of lines and of the output is ignored. A test fails if its input was not
    run, because the program had already exceeded a limit.

    Args:
        program: the source code of the program.
        tests: mappings with `input` and `output`.
        limits: the limits of the sandbox.

    Raises:
        ValueError: if a test lacks `input` or `output`.
        MachineFault: if the sandbox does not start.
    """
    for test in tests:
        if "input" not in test or "output" not in test:
            raise ValueError(
                f"code: a test lacks `input` or `output`; its keys are {list(test)}. Each "
                "test that is a mapping must have both; add the missing key."
            )
    job = Job(program, inputs=tuple(str(test["input"]) for test in tests))
    answers: list[Answer | None] = [*run(job, limits)]
    answers += [None] * (len(tests) - len(answers))
    return [
        answer is not None
        and answer.status == 0
        and stripped_lines(answer.output.decode("utf-8", "replace"))
        == stripped_lines(str(test["output"]))
        for answer, test in zip(answers, tests, strict=True)
    ]


def values_right(
    program: str, asserts: Asserts, limits: Limits, refuse_cheatable: bool
) -> list[bool]:
    """Return, for each assert, whether the program's values equal the expected values.

    Args:
        program: the source code of the program.
        asserts: the parsed tests.
        limits: the limits of the sandbox.
        refuse_cheatable: whether to raise an error for an assert on which a program could cheat.

    Raises:
        ValueError: if `refuse_cheatable` is true and a program could cheat on an assert.
        MachineFault: if the sandbox does not start.
        TimeoutError: if the expected values cannot be evaluated within the limits.
    """
    start_by = time.monotonic() + limits.start_seconds
    if refuse_cheatable:
        check_not_cheatable(asserts.cheatable)
    tests = with_expected_texts(asserts, limits, start_by)
    # If an expected value has no canonical text, its question is now about the whole condition,
    # and a program could cheat on it.
    if refuse_cheatable:
        questions = [question for pairs in tests for question, _ in pairs]
        check_not_cheatable(
            [question.condition for question in questions if question.expected is None]
        )
    expressions = tuple(question.expression for questions in tests for question, _ in questions)
    answers = run(Job(program, imports=asserts.imports, expressions=expressions), limits, start_by)
    texts = iter(answers[0].texts(len(expressions)) if answers else [None] * len(expressions))
    return [
        # A list, because with a generator, `all` would stop early and leave texts in the iterator.
        all([next(texts) == expected for _, expected in questions])
        for questions in tests
    ]


def check_not_cheatable(conditions: list[str]) -> None:
    """Raise `ValueError` if `conditions`, on which a program could cheat, is not empty."""
    if conditions:
        raise ValueError(
            f"code: a program could cheat on `assert {conditions[0]:.80}`, so `cheatable_asserts: "
            "refuse` rejects this assert. Write it like `assert f(2) == 3`, with a right side that "
            "is plain data and does not depend on the program."
        )


def stripped_lines(text: str) -> list[str]:
    """Return the lines of an output, without trailing whitespace or trailing empty lines."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
