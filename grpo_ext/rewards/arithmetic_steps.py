"""Find arithmetic steps such as `3 + 4 = 7` or `(3 + 4) × 2 = 7 × 2 = 14`, and check them.

One pass over the text divides it into sides: expressions that end at a word, punctuation, a line
break, an equals sign or an arrow. A step is a pair of sides joined by an equals sign or an arrow.
At least one of the sides must contain an operator. Text that cannot be parsed with certainty
(powers, percentages, unknowns, an operator after a word) is not a step, so it counts as neither
right nor wrong.
"""

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from grpo_ext.rewards.expression import MAX_LENGTH, ExpressionError, evaluate

MAX_TEXT = 100_000  # characters of a text that are searched

_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
# Each character is replaced by a single character, so that offsets are preserved.
_SIGNS = _FULL_WIDTH | str.maketrans("×✕·⋅∗÷∕⁄−–‐‑⟶⇒", "*****///----→→")
_TOKEN = re.compile(
    r"""
    (?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![.0-9])\.[0-9]+)
    |(?P<arrow>→|[-=]>|\\(?:to|rightarrow)(?![A-Za-z]))
    |(?P<power>(?:(?<=[0-9)])(?:\*\*|//)(?=[0-9(])|(?<=[ ])(?:\*\*|//)(?=[ ]+[0-9(])))
    |(?P<blank>(?:[ \t$&`\u00a0\u2009\u202f\u3000]|\\[()\[\],;!$ ]
        |\\(?:left|right)(?![A-Za-z])|\\boxed\{)+)
    |(?P<bold>\*\*+)
    |(?P<relation>[<>!~:]=|=/=|=<|//+|--+)
    |(?P<equals>==?)
    |(?P<operator>[-+*/]|\\(?:times|cdot|div)(?![A-Za-z]))
    |(?P<letter_x>[xX](?=[ \t]*[0-9(]))
    |(?P<opening>\()
    |(?P<closing>\))
    |(?P<line>[\n\r\v\f\u0085\u2028\u2029]+)
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPERATORS = {r"\times": "*", r"\cdot": "*", r"\div": "/", "x": "*", "X": "*"}


@dataclass
class Side:
    """An expression on one side of an equals sign or arrow."""

    begin: int = 0  # the offset of its first character
    end: int = 0
    # in the notation of `evaluate`; a negative number is a single token, such as `(0-3)`
    tokens: list[str] = field(default_factory=list)
    operands: list[Fraction] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)  # the offset of each token
    # For each open parenthesis, the counts of tokens, operands and operators up to it.
    opened: list[tuple[int, int, int]] = field(default_factory=list)
    length: int = 0  # the number of characters of all tokens together
    complete: bool = False  # whether the last token ends an operand
    readable: bool = True  # whether it can be parsed with certainty

    def add(self, token: str, begin: int, end: int) -> None:
        """Append a token, or mark the side unreadable if it would exceed `MAX_LENGTH`.

        Args:
            token: a number, an operator or a parenthesis in the notation of `evaluate`, or
                "negative" for the minus sign of the number that follows.
            begin: the offset of the token, which becomes the side's `begin` if the side is empty.
            end: the new end of the side.
        """
        if not self.length:
            self.begin = begin
        self.end = end
        self.length += len(token)
        if self.length > MAX_LENGTH:
            self.readable = False
        else:
            self.tokens.append(token)
            self.begins.append(begin)

    def cut(self) -> None:
        """Remove the last unclosed parenthesis and all before it: `2 * (3 + 4` becomes `3 + 4`.

        The side must contain an unclosed parenthesis.
        """
        tokens, operands, operators = self.opened[-1]
        del self.tokens[:tokens]
        del self.begins[:tokens]
        if self.begins:
            self.begin = self.begins[0]
        del self.operands[:operands]
        del self.operators[:operators]
        self.opened.clear()

    def drop_operators(self) -> None:
        """Remove trailing operators, which belong to the text that follows: `= 48 - too low`."""
        while self.tokens and self.tokens[-1] in "+-*/":
            self.tokens.pop()
            self.begins.pop()
            self.operators.pop()

    def evaluated(self) -> tuple[bool, Fraction | None]:
        """Return whether the side is a valid expression, and its exact value.

        The value is `None` if the side is not a valid expression, or if it divides by zero.
        """
        if not self.readable or not self.tokens:
            return False, None
        try:
            return True, evaluate(" ".join(self.tokens))[1]
        except ExpressionError:
            return False, None


class Step(NamedTuple):
    """A step of arithmetic: an expression, and the result that the text states for it."""

    begin: int  # the offset of its first character in the text
    end: int  # the offset after its last character
    operands: tuple[Fraction, ...]  # the numbers of the expression, sorted
    operators: tuple[str, ...]  # sorted
    value: Fraction | None  # the exact value of the expression; None if it divides by zero
    written: Fraction | None  # the value of the other side; None if it divides by zero

    @property
    def is_right(self) -> bool:
        """Whether both sides have the same value; `False` if either of them divides by zero."""
        return self.value is not None and self.value == self.written

    @property
    def identity(self) -> tuple[object, ...]:
        """A key that is the same for repetitions of a step, such as `1+2=3` and `2+1=3`."""
        return self[2:]


def steps_in(text: str) -> list[Step]:
    """Return the arithmetic steps in `text`, in order and with repeats.

    Only the first `MAX_TEXT` characters are searched.

    A step does not span lines. Each equals sign in a chain is a step: `(1 + 2) * 3 = 3 * 3 = 9` has
    two, and the first one of `48 / 2 = 24 + 48 = 72` is wrong. The first number after an arrow is
    the result of one step and begins the next one: `5 + 3 → 8 - 1 → 7` has two correct steps. Two
    sides with the same numbers and operators, as in `3 + 4 = 4 + 3`, do not form a step.
    """
    scanner = Scanner(text[:MAX_TEXT].translate(_SIGNS))
    scanner.scan()
    return scanner.steps


class Scanner:
    """Finds the arithmetic steps in `text`; `scan` appends them to the attribute `steps`."""

    def __init__(self, text: str):
        self.text = text
        self.steps: list[Step] = []
        self.left: Side | None = None  # the side before the last equals sign or arrow
        self.link = ""  # what joins `left` and `side`: "equals" or "arrow"; "" without `left`
        self.side = Side()
        self.line_start = True
        self.previous = ""  # the last token that is not blank

    def scan(self) -> None:
        for match in _TOKEN.finditer(self.text):
            kind = str(match.lastgroup)
            if kind in ("blank", "bold"):
                continue
            getattr(self, f"read_{kind}")(match)
            self.line_start = kind == "line"
            self.previous = match[0]
        self.end_side()

    def end_side(self, link: str = "") -> None:
        """Finish the current side, append the step that it completes, if any, and start a new side.

        `link` is what joins the finished side to the new one: "equals", "arrow", or "" if they are
        unrelated.
        """
        if self.left is not None:
            step = step_between(self.left, self.side, self.link)
            if step is not None:
                self.steps.append(step)
        self.left = self.side if link else None
        self.link = link
        self.side = Side()

    def read_number(self, match: re.Match[str]) -> None:
        if self.side.complete:
            touches = self.side.end == match.start()
            self.end_side()
            self.side.readable = not touches
        self.check_begin(match)
        self.add_number(match[0].replace(",", ""), match)

    def add_number(self, digits: str, match: re.Match[str]) -> None:
        token = digits
        sign = 1
        begin = match.start()
        if self.side.tokens and self.side.tokens[-1] == "negative":
            self.side.tokens.pop()
            begin = self.side.begins.pop()
            token = f"(0-{digits})"
            sign = -1
        self.side.add(token, begin, match.end())
        if self.side.readable:
            self.side.operands.append(sign * Fraction(digits))
        self.side.complete = True

    def read_opening(self, match: re.Match[str]) -> None:
        if self.side.complete:  # the parenthesis begins a remark or an implied product
            touches = self.side.end == match.start()
            self.side.readable = self.side.readable and not touches
            self.end_side()
            self.side.readable = False
        self.check_begin(match)
        self.side.add("(", match.start(), match.end())
        self.side.opened.append(
            (len(self.side.tokens), len(self.side.operands), len(self.side.operators))
        )

    def read_closing(self, match: re.Match[str]) -> None:
        if self.side.opened and self.side.complete:
            self.side.opened.pop()
            self.side.add(")", match.start(), match.end())
        else:
            self.end_side()

    def read_operator(self, match: re.Match[str]) -> None:
        operator = _OPERATORS.get(match[0], match[0])
        follows = self.text[match.end() : match.end() + 1]
        begins_number = follows.isdecimal() or follows == "."
        is_list_marker = self.line_start and follows in (" ", "\t")
        if self.side.complete:
            # The side still ends with its last operand, because the operator may belong to the
            # text after it.
            self.side.add(operator, match.start(), self.side.end)
            self.side.operators.append(operator)
            self.side.complete = False
        elif operator == "-" and begins_number and self.may_have_sign():
            self.side.add("negative", match.start(), match.end())
        elif not is_list_marker:
            self.side.readable = False

    def may_have_sign(self) -> bool:
        """Return whether a minus sign at the current token can be the sign of a number.

        It can in `3 * -2`, but not in `x -2`.
        """
        if self.side.tokens:
            return self.side.tokens[-1] != "negative"
        last = self.previous[-1:]
        follows_value = last.isalnum() or last in ("%", ")", "]", "}")
        return not follows_value

    def read_power(self, match: re.Match[str]) -> None:
        self.side.readable = False
        self.side.complete = False

    def read_letter_x(self, match: re.Match[str]) -> None:
        if self.side.complete:
            self.read_operator(match)
        else:
            self.end_side()

    def read_equals(self, match: re.Match[str]) -> None:
        self.end_side("equals")

    def read_arrow(self, match: re.Match[str]) -> None:
        self.end_side("arrow")

    def read_relation(self, match: re.Match[str]) -> None:
        self.end_side()

    def read_line(self, match: re.Match[str]) -> None:
        self.end_side()

    def read_other(self, match: re.Match[str]) -> None:
        touches = self.side.complete and self.side.end == match.start()
        changes_value = match[0] in "^%°" or is_small_numeral(match[0])
        if touches and changes_value:
            self.side.readable = False
        self.end_side()

    def check_begin(self, match: re.Match[str]) -> None:
        """Mark the side unreadable if its first token depends on the text before it.

        For example, the 3 in `2^3` or `x3` is not a number by itself. `match` is the current token.
        If the side already has tokens, nothing is changed.
        """
        before = self.text[max(0, match.start() - 2) : match.start()]
        last = before[-1:]
        if self.side.tokens or not last:
            return
        is_letter = last.isascii() and last.isalpha()
        is_time = last == ":" and before[:1].isdecimal()
        is_sign = last in "_^%\\√|}]"
        if is_letter or is_time or is_sign or is_small_numeral(last):
            self.side.readable = False


def is_small_numeral(character: str) -> bool:
    """Return whether a character is a numeral like ² or ½, but not a digit or a Chinese numeral."""
    return character.isnumeric() and not character.isdecimal() and not character.isalpha()


def step_between(left: Side, right: Side, link: str) -> Step | None:
    """Return the step that two sides form, or `None` if they do not form one.

    At least one side must contain an operator, and the two must differ in their numbers or
    operators. With an equals sign, both sides must be valid expressions. With an arrow, the left
    side must be an expression with an operator, and the right side must begin with a number, which
    is the result.

    Text that does not belong to the step is first removed from the sides, in place. From the left
    side, the last unclosed parenthesis and all before it are removed; from the right side, unclosed
    parentheses at its beginning and operators at its end. A right side with an unclosed parenthesis
    anywhere else does not form a step.

    Args:
        left: the side before the link.
        right: the side after the link.
        link: "equals" or "arrow".
    """
    right.drop_operators()
    if right.opened:
        only_parentheses = set(right.tokens[: right.opened[-1][0]]) == {"("}
        right.readable = right.readable and only_parentheses
        right.cut()
    if left.opened:
        left.cut()
    if not (left.operators or right.operators) or contents_of(left) == contents_of(right):
        return None
    is_expression, left_value = left.evaluated()
    if not is_expression:
        return None
    if link == "arrow":
        starts_with_number = bool(right.tokens) and right.tokens[0] != "("
        if not (left.operators and right.readable and starts_with_number):
            return None
        return Step(left.begin, right.end, *contents_of(left), left_value, right.operands[0])
    is_expression, right_value = right.evaluated()
    if not is_expression:
        return None
    if left.operators:
        return Step(left.begin, right.end, *contents_of(left), left_value, right_value)
    return Step(left.begin, right.end, *contents_of(right), right_value, left_value)


def contents_of(side: Side) -> tuple[tuple[Fraction, ...], tuple[str, ...]]:
    """Return the sorted operands and the sorted operators of a side."""
    return tuple(sorted(side.operands)), tuple(sorted(side.operators))
