r"""Parse a question's choices, units and formulas, and check answers against them."""

import re
import string
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from grpo_ext.rewards.answer_forms import FORMS, factor_count, is_expanded, is_factored, is_sum
from grpo_ext.rewards.arrangement import (
    arrangement_of,
    asks_for_order,
    in_order,
    indexed_symbols,
    without_own_indices,
)
from grpo_ext.rewards.asides import are_stated
from grpo_ext.rewards.conversions import (
    Quantity,
    asks_for_unit,
    asks_to_convert,
    has_other_unit,
    repeats_number,
    repeats_quantity,
    stated_numbers,
    stated_quantities,
)
from grpo_ext.rewards.dates import date_of
from grpo_ext.rewards.normal_form import formulas_of, sides_of
from grpo_ext.rewards.notation import plain, with_ascii_signs, with_repeating_decimals_as_fractions
from grpo_ext.rewards.quantity import ASKED_NAMES, MULTIPLE, UNIT_NAMES, number, split_unit
from grpo_ext.rewards.request import Request, request_of
from grpo_ext.rewards.structure import RESTATEMENT, alternatives, chain, is_name, only, split
from grpo_ext.rewards.texts import chosen_letter, numbered_content

MAX_QUESTION = 5_000  # characters read from the end of a prompt
MAX_CHOICE = 300  # characters kept per choice
LETTERS = string.ascii_uppercase

_FONT = re.compile(r"\\(?:text[a-z]*|math(?:rm|bf|it|sf))\s*\{\s*(\(?[A-H][).:]?\)?)\s*\}")
_SPACE = re.compile(r"\\(?:qquad|quad)(?![A-Za-z])|(?<!\\)\\[ ,;]|~")
_LABEL = re.compile(r"(?<![A-Za-z0-9\\_^])(?:\(([A-H])\)|([A-H])\)|([A-H])[.:](?=\s|[-$\\0-9]))")
_ASKED_UNIT = re.compile(
    r"(?i:\bhow many|\bnumber of|\bin)\s+"
    rf"((?:{UNIT_NAMES}) ?(?:/|per) ?(?:{UNIT_NAMES})|(?:square |cubic )?(?:{ASKED_NAMES}))"
    r"(?![A-Za-z])(?!\s*(?:per\b|/|an?\b|each\b|\^|squared|cubed|of\b))"
)
_POWERS = ("square ", "cubic ")
_ASKED_MULTIPLE = re.compile(rf"(?i:\bhow many|\bin)\s+({MULTIPLE})s?\b")
_ASKED = re.compile(
    r"\b(?:find|what (?:is|are)|compute|determine|evaluate|calculate|value of|simplify)"
    r"(?: the(?: [a-z]+){1,3} of)?[ :]*\$([^$]{1,100})\$",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"[0-9]")
_LENGTHS = re.compile(r"length\^[1-3]")
_SIZE = re.compile(r"\b(?:area|volume|perimeter|circumference)\b", re.IGNORECASE)
_DIMENSIONS = {"area": 2, "volume": 3, "perimeter": 1, "circumference": 1}
_PERCENT = re.compile(
    r"percent|\b(?:rate|discount|interest|chance|probability|likely|likelihood|increase|decrease"
    r"|tax|share|proportion|fraction)",
    re.IGNORECASE,
)
_YEAR = re.compile(r"\b(?:which|what) year\b", re.IGNORECASE)
_CONVERSION = re.compile(
    r"\b(?:express|write|convert|change|simplify|reduce|rewrite|round|evaluate|compute|calculate)\b"
    r"|\b(?:as|to|into|in) (?:an? )?(?:[a-z]+ ){0,2}(?:fraction|decimal|percent(?:age)?|mixed "
    r"number|notation|form)\b",
    re.IGNORECASE,
)
_OPERATION = re.compile(r"[!^]|\\(?:sqrt|[dt]?binom)")
_ATOM = re.compile(r"-?(?:[A-Za-z]|\\[A-Za-z]+|[0-9]+)")  # a single letter, command or integer


class Question(NamedTuple):
    """The parsed features of a question; the defaults mean that nothing is known."""

    choices: tuple[tuple[str, str], ...] = ()  # (letter, content)
    unit: str | None = None  # the unit of measure that it asks for
    multiple: str | None = None  # "dozen" if it asks "how many dozen"
    formulas: frozenset[str] = frozenset()  # the question's formulas, in normal form
    asked: frozenset[str] = frozenset()  # the formulas whose values it asks for
    dimension: int | None = None  # 1, 2 or 3 if it asks for a length, an area or a volume
    percent: bool = True  # whether the answer may be a percentage
    ordered: bool = False  # whether it asks to put something in order
    converts: bool = False  # whether it asks to rewrite or evaluate a number
    arrangement: str | None = None  # "interval" or "tuple" if it says what `(1, 2)` means
    indexed: frozenset[str] | None = None  # its symbols with subscripts; None if it is unknown
    numbers: frozenset[Fraction] = frozenset()  # the numbers that it states in digits
    quantities: frozenset[Quantity] = frozenset()  # the quantities with units that it states
    names_unit: bool = False  # whether it names a unit for the answer
    forms: tuple[Callable[[str], bool], ...] = ()  # checks of the forms that it asks for
    converts_unit: bool = False  # whether it asks to convert a quantity to another unit
    asks_year: bool = False  # whether it asks in which year something happened
    request: Request = Request()

    def content(self, letter: str | None) -> str | None:
        """Return the content of the choice with this letter; `None` if there is no such choice."""
        return dict(self.choices).get(letter or "")


def question_of(prompt: Any) -> Question:
    """Parse the question in a prompt, which is a string or a list of messages.

    In a list, the last user message is the question. Only the last `MAX_QUESTION` characters of the
    question are read. For any other prompt, return an empty `Question`.
    """
    if isinstance(prompt, list | tuple):
        prompt = last_user_content(prompt)
    if not isinstance(prompt, str):
        return Question()
    return read_question(prompt[-MAX_QUESTION:])


def last_user_content(messages: Sequence[Any]) -> Any:
    """Return the content of the last user message, or `None` if there is no user message.

    If the content is a list of blocks, the text of these blocks is joined with line breaks.
    """
    content = None
    for message in messages:
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
    if not isinstance(content, list):
        return content
    texts = []
    for block in content:
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            texts.append(block["text"])
    return "\n".join(texts)


def asked_unit(text: str) -> str | None:
    """Return the unit that a question asks for, such as `square feet`.

    Return `None` if it asks for no unit, or for several. Units count only if they follow
    `how many`, `number of` or `in`. If the last of them is square or cubic, a unit that is part of
    it is ignored (`feet` in `square feet`). If not, all square and cubic units are ignored.
    `pounds` does not count if the question contains `£`.
    """
    units = _ASKED_UNIT.findall(text)
    if "£" in text:
        units = [unit for unit in units if unit != "pounds"]
    if not units:
        return None
    is_size = units[-1].startswith(_POWERS)
    lengths = [unit for unit in units if not unit.startswith(_POWERS)]
    if is_size and any(unit not in units[-1] for unit in lengths):  # "hours" and "square feet"
        return None
    return only({unit for unit in units if unit.startswith(_POWERS) == is_size})


@lru_cache(maxsize=1024)
def read_question(text: str) -> Question:
    text = _SPACE.sub(" ", _FONT.sub(r"\1", with_ascii_signs(text)))
    text = with_repeating_decimals_as_fractions(text)
    sizes = {size.lower() for size in _SIZE.findall(text)}
    multiples = set(_ASKED_MULTIPLE.findall(text))
    formulas = {form for form in formulas_of(text) if form and not _ATOM.fullmatch(form)}
    requested_forms: set[str] = set()
    for formula in _ASKED.findall(text):
        requested_forms.update(sides_of(formula, in_words=False))
    numbers = stated_numbers(text)
    return Question(
        choices=choices_of(text),
        unit=asked_unit(text),
        multiple=only(multiples),
        formulas=frozenset(formulas),
        asked=frozenset(requested_forms),
        dimension=_DIMENSIONS.get(only(sizes) or ""),
        percent=_PERCENT.search(text) is not None or not text,
        ordered=asks_for_order(text),
        converts=_CONVERSION.search(text) is not None,
        arrangement=arrangement_of(text),
        indexed=indexed_symbols(text) if text else None,
        numbers=numbers,
        quantities=stated_quantities(text),
        names_unit=asks_for_unit(text),
        forms=tuple(has_form for request, has_form in FORMS.items() if request.search(text)),
        converts_unit=asks_to_convert(text),
        asks_year=_YEAR.search(text) is not None,
        request=request_of(text, numbers),
    )


def choices_of(text: str) -> tuple[tuple[str, str], ...]:
    """Return the choices A, B, C, ... in a question as (letter, content) pairs.

    If there are several lists of choices, return the longest one, or the last one in case of a tie.
    The content of the last choice ends at the end of its line, and each content is cut to
    `MAX_CHOICE` characters. Return `()` if there are fewer than two choices.
    """
    labels: list[re.Match[str]] = []
    longest: list[re.Match[str]] = []
    for match in _LABEL.finditer(text):
        letter = match[1] or match[2] or match[3]
        if letter == "A":
            labels = []
        if letter == LETTERS[len(labels)]:
            labels.append(match)
        if len(labels) >= len(longest):
            longest = list(labels)
    if len(longest) < 2:
        return ()
    contents = []
    for label, next_label in pairwise(longest):
        contents.append(text[label.end() : next_label.start()])
    last_line = text[longest[-1].end() :].strip().partition("\n")[0]
    contents.append(last_line)
    choices = []
    for letter, content in zip(LETTERS, contents, strict=False):
        content = content.rstrip(" \t\r\n,;$&\\").lstrip(" \t\r\n,;$&")
        choices.append((letter, content[:MAX_CHOICE]))
    return tuple(choices)


def restates(question: Question, answer: str) -> bool:
    """Return whether an answer only repeats formulas from the question.

    Terms and factors may come in any order, and neutral elements such as `+ 0` are ignored. A plain
    number counts as repeated only if the question asks to rewrite or evaluate a number, because
    other questions may contain the number that answers them.
    """
    sides = [side for side in chain(answer).sides if not is_name(side)]
    return bool(sides) and all(is_stated(question, side) for side in sides)


def is_unfinished(question: Question, gold: str, answer: str, *, is_marked: bool) -> bool:
    """Return whether an answer is an expression that still has to be evaluated.

    An example is `\\sqrt{100} + 3` for the gold answer 13. Return `False` if the gold answer is not
    a number, or nothing is known about the question.

    A marked answer (in a box, after "answer is", ...) is unfinished if the question asks to rewrite
    or evaluate a number and every side of the answer, apart from names, is a sum.

    An unmarked answer is unfinished if its last side is not a number, and is a sum or contains a
    sum in brackets, a power, a root, a factorial or a binomial coefficient.
    """
    if question == Question() or number(gold) is None or (is_marked and not question.converts):
        return False
    sides = chain(answer).sides
    if is_marked:
        values = [side for side in sides if not is_name(side)]
        return all(number(value) is None and is_sum(value) for value in values)
    last = sides[-1]
    has_operation = _OPERATION.search(last) is not None
    has_sum = is_sum(last) or not is_expanded(last)
    return number(last) is None and (has_operation or has_sum)


def has_asked_form(question: Question, gold: str, answer: str) -> bool:
    """Return whether an answer has every form that the question asks for, such as "reduced".

    A form that the gold answer lacks is not required. Only the last side of an equation is checked.
    If that is an integer from the question, as in `2^3 \\cdot 5 = 40`, the side before it is
    checked instead.

    A factored answer must have at least as many factors as the gold answer: `x(x^2 - 1)` is not
    `x(x - 1)(x + 1)`.
    """
    gold = chain(gold).sides[-1]
    *first_sides, last = chain(answer).sides
    if first_sides and last.isdecimal() and are_stated([last], question.numbers):
        last = first_sides[-1]
    required = [has_form for has_form in question.forms if has_form(gold)]
    if is_factored in required and factor_count(last) < factor_count(gold):
        return False
    return all(has_form(last) for has_form in required)


def asked_value(question: Question, gold: str, answer: str) -> str:
    """Return the value asked for, if the answer is a list of equations that contains it.

    For example, return `1/3` for `a = 1/3, b = 0, a + b = 1/3` if the question asks for a + b. This
    is done only if the gold answer is a single value without `=`, and exactly one of the equations
    gives the value. If the question asks for a year and the answer is a date, return the year of
    the date, whatever the gold answer is. In all other cases, return the answer unchanged.
    """
    date = date_of(answer) if question.asks_year else None
    if date is not None and date.year is not None:
        return str(date.year)
    if "=" in gold or len(alternatives(gold)) != 1:
        return answer
    equations = [chain(part) for part in alternatives(answer)]
    if any({*operators} != {"="} for _, operators in equations):
        return answer
    values = []
    for sides, _ in equations:
        if not question.asked.isdisjoint(sides_of(sides[0], in_words=False)):
            values.append(" = ".join(sides[1:]))
    if len(values) != 1:
        return answer
    return values[0]


def repeats(question: Question, gold: str, answer: str) -> bool:
    """Return whether an answer fails to convert a number or quantity from the question.

    This is the case if

    - the answer repeats a number from the question, the gold answer is a formula, and the question
      has no choices;
    - the question asks to convert a unit, and the answer and the gold answer have different units;
    - the question asks to rewrite or evaluate a number, or names a unit for the answer, and the
      answer only repeats quantities from the question that differ from the gold answer.
    """
    if not question.choices and repeats_number(question.numbers, gold, answer):
        return True
    if question.converts_unit and has_other_unit(gold, answer):
        return True
    asks = question.converts or question.names_unit
    return asks and repeats_quantity(question.quantities, gold, answer)


def arranged(question: Question, gold: str, answer: str) -> tuple[str, str]:
    """Return (gold, answer), changed so that order counts only if the question asks for it.

    If the question asks to put values in order, two lists become tuples. Otherwise, names with
    subscripts that occur only in the answer (`x_1 = 3, x_2 = 1`) are removed from it. If nothing is
    known about the question, both are returned unchanged.
    """
    if question.ordered:
        return in_order(gold, answer)
    if question.indexed is None:
        return gold, answer
    return gold, without_own_indices(question.indexed, gold, answer)


def has_asked_percent(question: Question, gold: str, answer: str) -> bool:
    """Return whether the question allows the percent sign in an answer, if there is one.

    Return `False` only if the answer is the gold number with a percent sign added, and the question
    does not ask for a percentage: `36%` is then not `36`.
    """
    expected = number(gold)
    actual = number(answer)
    if question.percent or expected is None or actual is None:
        return True
    return not actual.percent or expected.percent or expected.value != actual.value


def has_asked_dimension(question: Question, answer: str) -> bool:
    """Return whether an answer's unit fits the area, volume or length that the question asks for.

    If the question asks for none of these, or the answer has no unit of length, area or volume,
    return `True`.
    """
    unit = split_unit(answer)[1]
    if question.dimension is None or unit is None or not _LENGTHS.fullmatch(unit[0]):
        return True
    return unit[0] == f"length^{question.dimension}"


def is_stated(question: Question, side: str) -> bool:
    """Return whether one side of an answer is a formula from the question.

    A plain number counts only if the question asks to rewrite or evaluate a number.
    """
    if number(side) is not None and not question.converts:
        return False
    form = only(form for form in sides_of(side, in_words=False) if form)
    return form is not None and form in question.formulas


def chosen_contents(question: Question, gold: str, answer: str) -> tuple[str, str] | None:
    """Replace the letter of a choice with its content, if only `gold` or only `answer` is a letter.

    Return (gold, answer), or `None` if both or neither are letters, or the question has no such
    choice. A gold answer such as `(2) Mars` becomes `Mars` if the question contains `(2) Mars` and
    the answer contains no digit.
    """
    numbered = numbered_content(gold)
    if numbered is not None and question.request.states(gold) and not _DIGIT.search(answer):
        return numbered, answer
    gold_letter = chosen_letter(gold)
    letter = chosen_letter(answer)
    gold_content = question.content(gold_letter)
    content = question.content(letter)
    if gold_content is not None and letter is None:
        return gold_content, answer
    if content is not None and gold_letter is None:
        return gold, content
    return None


def in_asked_unit(question: Question, gold: str, answer: str, solution: str) -> str:
    """Add a unit to a gold answer that is a plain number.

    The unit is the one that the question asks for. If the question asks for none, it is the unit
    that follows the number in `solution`, provided that the answer has a unit of the same
    dimension. If there is no such unit or more than one, or the gold answer is not a plain number,
    return the gold answer unchanged.
    """
    plain_number = number(gold)
    if plain_number is None or plain_number.percent or plain_number.unit:
        return gold
    if question.unit is not None:
        measured = plain(f"{gold} {question.unit}")  # `36 square feet` is 36 feet^2
        if number(measured) is None:
            return gold
        return measured
    units = set(re.findall(rf"(?<![0-9.,]){re.escape(gold)} ({UNIT_NAMES})\b", solution))
    actual = number(split(answer, RESTATEMENT)[0])  # `144 months, or 12 years`
    if len(units) != 1 or actual is None or actual.unit is None:
        return gold
    measured = f"{gold} {units.pop()}"
    expected = number(measured)
    if expected is None or expected.unit is None:
        return gold
    is_same_kind = expected.unit[0] == actual.unit[0]
    if not is_same_kind:
        return gold
    return measured


def in_asked_multiple(question: Question, gold: str, answer: str) -> str:
    """Drop a multiple such as "dozen" from an answer to a question that asks how many dozen.

    Any text after the multiple is dropped as well: `10 dozen eggs` becomes `10`. This is done only
    if the gold answer is a number without the multiple. In all other cases, return the answer
    unchanged.
    """
    if question.multiple is None or question.multiple in gold:
        return answer
    if number(gold) is None:
        return answer
    counted = re.fullmatch(rf"(.+?) {question.multiple}s?\b.*", answer)
    if counted is None:
        return answer
    return counted[1]
