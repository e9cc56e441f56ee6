"""Turn asserts into questions that a program answers without seeing the expected values."""

import ast
import builtins
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from grpo_ext.rewards.code.inside.canonical import NotPlain, canonical
from grpo_ext.rewards.code.sandbox import START_SHARE, Job, Limits, run

TRUE = canonical(True)
# The exceptions of `ast.literal_eval` for source code that is not a literal.
NO_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
MAX_REMEMBERED = 1024  # rows with cached asserts and expected values, for the rest of their group
_evaluated: dict[tuple[str, tuple[str, ...]], dict[str, str | None]] = {}


@dataclass(frozen=True)
class Question:
    """An expression to evaluate in the program's namespace, and the value that it must have.

    `condition` is the source code of the assert's condition or, if `and` joins several conditions,
    of one of them. `expected` is source code that is evaluated without the program. If `expected`
    is `None`, the expression is `bool(condition)`, which must be `True`. It is evaluated with the
    program's own objects, so the program could cheat, for example with its own `__eq__`.
    """

    expression: str
    condition: str
    expected: str | None = None


@dataclass(frozen=True)
class Asserts:
    """The tests of a row: the questions for each assert, and the import statements of all tests."""

    imports: str
    tests: tuple[tuple[Question, ...], ...]

    @property
    def cheatable(self) -> list[str]:
        """The conditions on which a program could cheat, because its own objects are compared.

        `with_expected_texts` may find more of them, if an expected value has no canonical text.
        """
        return [
            question.condition
            for questions in self.tests
            for question in questions
            if question.expected is None
        ]


@lru_cache(maxsize=MAX_REMEMBERED)
def parse_asserts(tests: tuple[str, ...]) -> Asserts:
    """Parse tests, which consist of asserts and imports, into questions.

    Results are cached, because the completions of a group share their tests.

    Raises:
        ValueError: if a test is not valid Python or contains any other statement, or if no test
            contains an assert.
    """
    imports: list[str] = []
    conditions: list[ast.expr] = []
    for test in tests:
        for statement in statements_of(test):
            if isinstance(statement, ast.Assert):
                conditions.append(statement.test)
            elif isinstance(statement, ast.Import | ast.ImportFrom):
                imports.append(ast.unparse(statement))
            else:
                raise not_an_assert(test)
    if not conditions:
        raise ValueError("code: the tests contain no assert. Write a test like `assert f(2) == 3`.")
    import_lines = "\n".join(dict.fromkeys(imports))
    names = known_names(import_lines)
    return Asserts(
        import_lines, tuple(tuple(questions_of(condition, names)) for condition in conditions)
    )


def called_functions(asserts: Asserts) -> set[str]:
    """Return the names of the program's functions that the asserts call."""
    known = known_names(asserts.imports)
    called = set()
    for questions in asserts.tests:
        for question in questions:
            for node in ast.walk(ast.parse(question.condition)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    called.add(node.func.id)
    return called - known


def statements_of(test: str) -> list[ast.stmt]:
    try:
        return ast.parse(test.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise not_an_assert(test) from error


def not_an_assert(test: str) -> ValueError:
    return ValueError(
        f"code: the test {test!r:.80} may contain only asserts and imports, in valid Python. Write "
        "it like `assert f(2) == 3`."
    )


def known_names(imports: str) -> set[str]:
    """Return the names that exist without the program: builtins, and names bound by `imports`."""
    names = set(dir(builtins))
    for statement in ast.parse(imports).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                names.add(alias.asname or alias.name.split(".")[0])
    return names


def questions_of(condition: ast.expr, names: set[str]) -> list[Question]:
    """Split an assert's condition into `Question`s; `a and b` yields the questions of both parts.

    An expected value may use only `names` (see `known_names`).
    """
    if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And):
        questions = []
        for part in condition.values:
            questions += questions_of(part, names)
        return questions
    if isinstance(condition, ast.Compare):
        questions = questions_of_equality(condition, names) or questions_of_identity(condition)
        if questions:
            return questions
    source = ast.unparse(condition)
    return [Question(f"bool({source})", source)]


def questions_of_equality(comparison: ast.Compare, names: set[str]) -> list[Question]:
    """Return a question for each side of `a == b` except the expected value.

    The expected value is the last side that uses no names at all, such as a literal, or else the
    last side that uses only `names`. Return `[]` if there is no such side, or if the comparison has
    an operator other than `==`.
    """
    sides = [comparison.left, *comparison.comparators]
    known_sides = [side for side in sides if is_known(side, names)]
    if not known_sides or not all(isinstance(operator, ast.Eq) for operator in comparison.ops):
        return []
    # Prefer a literal: a program may define a function that has the name of a builtin.
    literals = [side for side in known_sides if is_known(side, set())]
    expected = (literals or known_sides)[-1]
    questions = []
    for side in sides:
        if side is not expected:
            question = Question(
                ast.unparse(side), ast.unparse(comparison), expected=ast.unparse(expected)
            )
            questions.append(question)
    return questions


def questions_of_identity(comparison: ast.Compare) -> list[Question]:
    """Return a list with the question for `a is True`, `a is False` or `a is None`.

    Return `[]` for any other comparison.
    """
    if len(comparison.ops) != 1 or not isinstance(comparison.ops[0], ast.Is):
        return []
    constant = comparison.comparators[0]
    if not isinstance(constant, ast.Constant) or not isinstance(constant.value, bool | None):
        return []
    left = ast.unparse(comparison.left)
    expression = f"(lambda value: (value, type(value).__name__))({left})"
    expected_text = repr((constant.value, type(constant.value).__name__))
    return [Question(expression, ast.unparse(comparison), expected_text)]


def is_known(side: ast.expr, names: set[str]) -> bool:
    """Return whether an expression uses only `names` and names that it binds itself."""
    bound = set(names)
    loaded = set()
    for node in ast.walk(side):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.Name):
            loaded.add(node.id)
    return loaded <= bound


def with_expected_texts(
    asserts: Asserts, limits: Limits, start_by: float
) -> list[list[tuple[Question, str]]]:
    """For each assert, return its questions, each with the canonical text of the correct answer.

    Literals are parsed in this process. Other expected values are evaluated in a sandbox without
    the program, and cached for the row's other completions. If an expected value raises an error or
    has no canonical text, as is the case for NaN and a `datetime`, its question is replaced by one
    that asks whether the condition is true, with `expected` set to `None`.

    Args:
        asserts: the asserts of a row.
        limits: the limits of the sandbox.
        start_by: the latest time (`time.monotonic`) for the sandbox to become ready.

    Raises:
        TimeoutError: if the expected values cannot be evaluated within the limits of time and
            memory.
        MachineFault: if the sandbox does not start.
    """
    sources = {question.expected for questions in asserts.tests for question in questions}
    texts = {source: literal_text(source) for source in sources if source is not None}
    no_literals = sorted(source for source, text in texts.items() if text is None)
    evaluated = (asserts.imports, tuple(no_literals))
    if no_literals and evaluated not in _evaluated:
        while len(_evaluated) >= MAX_REMEMBERED:
            del _evaluated[next(iter(_evaluated))]
        _evaluated[evaluated] = evaluate(*evaluated, limits, start_by)
    texts |= _evaluated.get(evaluated, {})
    return [
        [judged(question, texts.get(question.expected or "")) for question in questions]
        for questions in asserts.tests
    ]


def evaluate(
    imports: str, sources: tuple[str, ...], limits: Limits, start_by: float
) -> dict[str, str | None]:
    """Evaluate expressions in a sandbox without the program.

    Args:
        imports: import statements to run first.
        sources: the expressions.
        limits: the limits of the sandbox. The expressions may take `START_SHARE` of its time limit.
        start_by: the latest time (`time.monotonic`) for the sandbox to become ready.

    Returns:
        The canonical text for each expression; `None` if the expression raises an error or its
        value has no canonical text.

    Raises:
        TimeoutError: if the expressions cannot be evaluated within the limits of time and memory.
        MachineFault: if the sandbox does not start.
    """
    job = Job("", imports=imports, expressions=sources, expected=True)
    share = replace(limits, seconds=START_SHARE * limits.seconds)
    answers = run(job, share, start_by)
    if not answers or answers[0].status != 0:
        raise TimeoutError(
            "code: the expected values of the tests could not be evaluated within the "
            "limits of time and memory. Write them as plain values, or raise the options "
            "`seconds` and `megabytes`."
        )
    return dict(zip(sources, answers[0].texts(len(sources)), strict=True))


def judged(question: Question, expected_text: str | None) -> tuple[Question, str]:
    if expected_text is not None:
        return question, expected_text
    whole = replace(question, expression=f"bool({question.condition})", expected=None)
    return whole, TRUE


def literal_text(source: str) -> str | None:
    """Return the canonical text of a literal of plain data; `None` for any other source."""
    with suppress(NotPlain, *NO_LITERAL):
        return canonical(ast.literal_eval(source), expected=True)
    return None


def paired(tests: dict[str, object]) -> list[object]:
    """Convert tests in the APPS format, `{"inputs": [...], "outputs": [...]}`, to a list.

    Each entry of the list is a mapping with the keys `input` and `output`. The list is empty if
    `inputs` or `outputs` is not a list, or if their lengths differ.
    """
    inputs = tests.get("inputs")
    outputs = tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        return []
    if len(inputs) != len(outputs):
        return []
    return [{"input": i, "output": o} for i, o in zip(inputs, outputs, strict=True)]


def tests_as_list(tests: object) -> list[object]:
    """Return a row's tests as a list; a string is parsed as JSON or as a Python literal.

    A mapping with `inputs` and `outputs` is converted to a list of mappings with `input` and
    `output`, unless it has `fn_name`.

    Raises:
        ValueError: if the result is not a list, or is empty.
    """
    parsed = tests
    if isinstance(tests, str):
        try:
            parsed = json.loads(tests)
        except (ValueError, RecursionError):
            with suppress(*NO_LITERAL):
                parsed = ast.literal_eval(tests)
    if isinstance(parsed, dict) and parsed.get("fn_name") is None:
        parsed = paired(parsed)
    if not isinstance(parsed, list) or not parsed:
        raise ValueError(
            "code: tests must be a non-empty list of asserts, a non-empty list of mappings with "
            "`input` and `output`, or a mapping without `fn_name` that has non-empty lists "
            f"`inputs` and `outputs` of the same length; got {tests!r:.80}."
        )
    return parsed
