r"""Split an answer in plain notation: lists, sets, tuples, intervals, inequalities, chains.

Answers are split at separators outside all brackets, without algebra. The module `equality`
compares the parts.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from grpo_ext.rewards.quantity import CURRENCY_SIGNS, THOUSANDS_COMMA, arithmetic

Value = TypeVar("Value")

_TOKEN = re.compile(r"\\(?:begin|end)\{[a-z]*\}|\\[A-Za-z]+|\\.|.", re.DOTALL)
_OPENING = {"(", "[", "{", r"\{"}
_CLOSING = {")", "]", "}", r"\}"}

_SYMBOL = r"(?:[A-Za-z]|\\[a-z]+)(?:_(?:\{[^{}]*\}|[0-9A-Za-z]))?'*"
_NAME = re.compile(
    rf"""
    {_SYMBOL} (?:\s?\^\s?\{{?-1\}}?)? (?:\s?\([^()=<>]{{1,30}}\))?  # x, a_1, f(x), P(A \cap B)
    | \((?:{_SYMBOL})(?:,\s?{_SYMBOL})+\)                # (x, y)
    | [A-Z]{{2,4}} | \|[A-Z]{{2}}\| | \\overline\{{[A-Z]{{2}}\}}         # segments
    | m?\s?\\angle\s?[A-Z]{{1,3}}
    | \\(?:sin|cos|tan)\s?(?:[A-Z]|\\[a-z]+)             # of an angle that has a name
    | \\frac\{{d\s?[a-z]\}}\{{d\s?[a-z]\}} | d[a-z]/d[a-z]
    | [A-Za-z][a-z]{{2,}}(?:\s[A-Za-z]+){{0,4}}          # Area, total cost
    """,
    re.VERBOSE,
)
_NO_NAME = re.compile(
    r"\\(?:infty|pi|emptyset|sqrt|frac|log|ln|exp|cdot|times|pm|mp)(?![a-z])|e$|(?:not|never|no)\b"
)
_RELATION = re.compile(r"\\(?:ne|le|ge)(?![A-Za-z])|<=|>=|[<>=]")
_SPELLING = {"<=": r"\le", ">=": r"\ge"}
_REVERSED = {">": "<", r"\ge": r"\le", "<": "<", r"\le": r"\le"}
_POINT = re.compile(r"([A-Z](?:_(?:[0-9]|\{[0-9]\}))?'*) ?(\([^()=]+,[^()=]+\))")  # A'(3, 7)
MEMBER = re.compile(r"\\in(?![A-Za-z])")
_BUILDER = re.compile(r"\\\{\s*([^|{}:]+?)\s*(?:\||\\mid(?![a-z])|:)\s*(.+)\\\}")
RESTATEMENT = re.compile(r",? +(?:or|i\.e\.|that is),? +")
_WORD_SEPARATOR = re.compile(r"[;,]? +(?:and|or) +|;\s*")
_COMMA_SPACE = re.compile(r",\s+")
COMMA = re.compile(r",\s*")
_COLON = re.compile(r"\s*:\s*")
_THOUSANDS = re.compile(rf"[-+{CURRENCY_SIGNS}]*[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])[^,]*")
_SIGNS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
MAX_PARTS = 20  # parts of a list that are compared


class Chain(NamedTuple):
    """Sides joined by relation signs, as in `a < b` or `x = 3 + 4 = 7`.

    A single side has no operators.
    """

    sides: tuple[str, ...]
    operators: tuple[str, ...]


class Collection(NamedTuple):
    """The parts of an answer; an answer that cannot be split has the kind `single`."""

    kind: str  # single, list, ordered, set, or the brackets of a tuple
    parts: tuple[str, ...]
    names: tuple[str, ...] = ()  # one name that all parts share, or one per part; may be empty


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Split `text` at matches of `separator` outside all brackets and LaTeX environments.

    Whitespace around the parts is stripped; parts may be empty.
    """
    parts = []
    depth = start = position = 0
    while position < len(text):
        match = separator.match(text, position) if depth == 0 else None
        if match is not None:
            parts.append(text[start:position].strip())
            start = position = match.end()
            continue
        token = _TOKEN.match(text, position)
        assert token is not None
        depth += depth_change(token[0])
        position = token.end()
    parts.append(text[start:].strip())
    return parts


def only(values: Iterable[Value]) -> Value | None:
    """Return the only value, or `None` if there are none or several."""
    listed = list(values)
    if len(listed) != 1:
        return None
    return listed[0]


def depth_change(token: str) -> int:
    if token in _OPENING or token.startswith(r"\begin{"):
        return 1
    if token in _CLOSING or token.startswith(r"\end{"):
        return -1
    return 0


def brackets(text: str) -> tuple[str, str, str] | None:
    """Split text enclosed in one pair of brackets into (opening bracket, content, closing bracket).

    Whitespace around the content is stripped. Return `None` for any other text.
    """
    depth = 0
    tokens = list(_TOKEN.finditer(text))
    if len(tokens) < 2:
        return None
    opening = tokens[0]
    closing = tokens[-1]
    if opening[0] not in _OPENING or closing[0] not in _CLOSING:
        return None
    for token in tokens[:-1]:
        depth += depth_change(token[0])
        if depth == 0:
            return None
    content = text[opening.end() : closing.start()]
    return opening[0], content.strip(), closing[0]


def is_name(text: str) -> bool:
    """Return whether `text` names an unknown or a quantity, such as `f(2)` or `total cost`."""
    return _NAME.fullmatch(text) is not None and _NO_NAME.match(text) is None


def chain(text: str) -> Chain:
    r"""Split `text` at the relation signs outside all brackets.

    If all signs are `>` or `\ge`, the chain is reversed: `a > b` becomes `b < a`. The operators
    `<=` and `>=` become `\le` and `\ge`.
    """
    sides = split(text, _RELATION)
    operators = [_SPELLING.get(sign, sign) for sign in top_relations(text)]
    descends = bool(operators) and all(operator in (">", r"\ge") for operator in operators)
    if descends:
        sides.reverse()
        operators.reverse()
        operators = [_REVERSED[operator] for operator in operators]
    return Chain(tuple(sides), tuple(operators))


def top_relations(text: str) -> Iterator[str]:
    """Yield the relation signs in `text` that are outside all brackets, in order."""
    depth = position = 0
    while position < len(text):
        match = _RELATION.match(text, position) if depth == 0 else None
        if match is not None:
            yield match[0]
            position = match.end()
            continue
        token = _TOKEN.match(text, position)
        assert token is not None
        depth += depth_change(token[0])
        position = token.end()


def without_builder(text: str) -> str:
    r"""Reduce a set `\{x | x > 3\}` to its condition `x > 3`; return any other text unchanged."""
    match = _BUILDER.fullmatch(text)
    if match is None or not (is_name(match[1]) or MEMBER.search(match[1])):
        return text
    return match[2].strip()


def collection(text: str) -> Collection:
    r"""Split a set, a tuple, a list, or a ratio of three or more terms into its parts.

    A name before the answer (`x = ...`) is separated from it. A value with `\pm` or `\mp` becomes a
    list of two values. Any other answer becomes a single part.
    """
    if text == r"\emptyset":
        return Collection("set", ())
    text = without_builder(text)
    name, content = label(text)
    names = (name,) if name else ()
    enclosed = brackets(content)
    if enclosed is not None and enclosed[0] == r"\{":
        return Collection("set", signed(alternatives(enclosed[1])), names)
    if enclosed is not None and enclosed[0] != "{":
        parts = split(enclosed[1], COMMA)
        if len(parts) > 1 and len(_SIGNS.findall(content)) == 1:
            return Collection("list", signed([content]), names)
        if len(parts) > 1:
            return Collection(enclosed[0] + enclosed[2], tuple(parts), names)
    terms = split(content, _COLON)
    if len(terms) > 2:  # 3:4:5; `number` reads 3:4
        return Collection("ordered", tuple(terms), names)
    parts = alternatives(text)
    if len(parts) > 1:
        return labeled("ordered" if ";" in text else "list", parts)
    values = signed([content])
    if len(values) == 1:
        return Collection("single", values, names)
    return Collection("list", values, names)


def alternatives(text: str) -> list[str]:
    """Split a list at "and", "or", semicolons and commas, but not at the comma in `5 * 1,234`.

    Empty parts are dropped.
    """
    parts = []
    for clause in split(text, _WORD_SEPARATOR):
        for phrase in split(clause, _COMMA_SPACE):
            if _THOUSANDS.fullmatch(phrase) or arithmetic(phrase) is not None:
                parts.append(phrase)
            elif "=" in phrase:
                parts += split(THOUSANDS_COMMA.sub("", phrase), COMMA)
            else:
                parts += split(phrase, COMMA)
    return [part for part in parts if part]


def signed(parts: list[str]) -> tuple[str, ...]:
    r"""Expand each part with `\pm` or `\mp` into two parts, one for each sign."""
    values = []
    for part in parts:
        if not _SIGNS.search(part):
            values.append(part)
            continue
        upper = part.replace(r"\pm", "+").replace(r"\mp", "-")
        lower = part.replace(r"\pm", "-").replace(r"\mp", "+")
        values.append(upper.strip("+ "))
        values.append(lower.strip("+ "))
    return tuple(values)


def label(text: str) -> tuple[str | None, str]:
    r"""Split a named value, such as `x = 5`, `x \in \{5\}` or `A(1, 2)`, into (name, value).

    Return (`None`, text) for any other text.
    """
    sides, operators = chain(text)
    if operators and set(operators) == {"="} and is_name(sides[0]):
        return sides[0], " = ".join(sides[1:])
    point = _POINT.fullmatch(text)
    if point is not None:
        return point[1], point[2]
    members = split(text, MEMBER)
    if len(members) == 2 and is_name(members[0]) and members[1].startswith(r"\{"):
        return members[0], members[1]
    return None, text


def labeled(kind: str, parts: list[str]) -> Collection:
    """Separate the names in a list of parts from the values, and return a `Collection`.

    A part without a name shares that of the part before it: in `x = 1, 2`, both values have the
    name x. Parts with different names, as in `y = 2, x = 1`, are sorted by name. If the first part
    has no name, a later part has a relation sign but no name, or only some of the names repeat, no
    names are separated.

    Args:
        kind: the kind of the list, "list" or "ordered". Parts that are sorted by name become
            "ordered".
        parts: the parts of the list.
    """
    names: list[str | None] = []
    values = []
    for part in parts:
        name, value = label(part)
        if name is None and names and not any(top_relations(part)):
            name = names[-1]  # the name of the previous part
        names.append(name)
        values.append(value)
    if None in names:
        return Collection(kind, signed(parts))
    named = [name for name in names if name is not None]
    if len(set(named)) == 1:
        return Collection(kind, signed(values), (named[0],))
    if len(set(named)) < len(named):  # f(x) = 1, g(x) = 2, f(x) = 3
        return Collection(kind, signed(parts))
    value_of = dict(zip(named, values, strict=True))
    named.sort(key=lambda name: name.lstrip("\\"))  # r, \theta
    sorted_values = tuple(value_of[name] for name in named)
    return Collection("ordered", sorted_values, tuple(named))


def is_tuple(parts: Collection) -> bool:
    """Return whether `parts` is a tuple or interval, enclosed in round or square brackets."""
    return parts.kind in ("()", "[]", "[)", "(]")
