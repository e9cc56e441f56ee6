"""Substitute variables and integer arithmetic in the words of a shell script."""

import ast
import operator
import re
from dataclasses import dataclass

from grpo_ext.migrate.shell_text import (
    CLOSE,
    LITERAL_DOLLAR,
    LITERAL_TICK,
    OPEN,
    PRIVATE,
    QUOTED_DOLLAR,
    SUM,
)

MOST_CHARACTERS = 2**16  # in a word after its variables were substituted
MOST_TOTAL = 2**20  # in all words of a script together
MOST_ROUNDS = 20  # how deep `${A:-${B}}` may be nested
LARGEST = 10**15  # the largest number in `$((...))`
UNKNOWN = re.compile("\ue008([^\ue009]*)\ue009")  # a name that was not substituted
VARIABLE = re.compile(
    r"""[$\ue001](?:(?P<bare>[A-Za-z_]\w*)
      | \{(?P<name>[A-Za-z_]\w*|\d)(?::?-(?P<default>[^{}]*))?\})
      | \ue003\{(?P<sum>[^{}]*)\}""",
    re.VERBOSE,
)
WHOLE_ARRAY = re.compile(r"[$\ue001]\{([A-Za-z_]\w*)\[[@*]\]\}")
WHOLE_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")


def quotient(dividend: int, divisor: int) -> int:
    """Divide two integers and round toward 0, as the shell does."""
    size = abs(dividend) // abs(divisor)
    return size if (dividend < 0) == (divisor < 0) else -size


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: quotient,
}


@dataclass(frozen=True)
class Word:
    """A word of a command after variables were substituted."""

    text: str
    line: int
    unknown: str | None = None  # its parts that were not substituted, such as `$DATA`


class TooLong(ValueError):
    """Raised if a substituted word exceeds `MOST_CHARACTERS`, or all words exceed `MOST_TOTAL`."""


class Variables:
    """The variables of a script, each a list of words, or `None` if its value is not known."""

    def __init__(self) -> None:
        self.values: dict[str, list[Word] | None] = {"HOME": [Word("~", 0)]}
        self.characters = 0

    def set(self, name: str, words: list[Word], certain: bool) -> None:
        """Set a variable to some words, or to `None` if its value is not known.

        Args:
            name: the name of the variable.
            words: its words; if one of them has an unknown part, the value is not known.
            certain: whether the assignment always runs, and runs in the script's own shell; if not,
                the value is not known.
        """
        known = certain and all(word.unknown is None for word in words)
        self.values[name] = words if known else None

    def expand(self, text: str, line: int) -> list[Word]:
        """Return the words, possibly none, to which a word of the script expands.

        `$@` and `$*` expand to no words. Parts that are not known stay as they are, and are named
        in `Word.unknown`.

        Args:
            text: the word, in the form of `shell_text.prepared`.
            line: its line in the script.

        Raises:
            TooLong: if the word, or all words expanded so far, have too many characters.
        """
        array = WHOLE_ARRAY.fullmatch(text)
        if array is not None:
            words = self.values.get(array[1])
            if words is None:
                words = [Word(f"${{{array[1]}[@]}}", line, f"${array[1]}")]
            return self._counted(words)
        if text in ("$@", "$*", "\ue001@", "\ue001*"):
            return []  # the script's arguments are not known
        expanded = self._substituted(text, line)
        if expanded.unknown is None and WHOLE_VARIABLE.fullmatch(text):
            return self._counted([Word(part, line) for part in expanded.text.split()])
        return self._counted([expanded])

    def _substituted(self, text: str, line: int) -> Word:
        for _ in range(MOST_ROUNDS):
            replaced = VARIABLE.sub(self._value, text)
            if replaced == text:
                break
            if len(replaced) > MOST_CHARACTERS:
                raise TooLong
            text = replaced
        names = [f"${name}" for name in UNKNOWN.findall(text)]
        if re.search(r"[$`\ue001\ue003]", text):
            names.append("what the shell computes")
        text = UNKNOWN.sub(r"$\1", text).replace(QUOTED_DOLLAR, "$").replace(SUM, "$")
        text = text.replace(OPEN, "(").replace(CLOSE, ")")
        text = text.replace(LITERAL_DOLLAR, "$").replace(LITERAL_TICK, "`")
        text = PRIVATE.sub("", text)  # remove marks left by nested names
        return Word(text, line, " and ".join(dict.fromkeys(names)) or None)

    def _value(self, found: re.Match[str]) -> str:
        if found["sum"] is not None:
            value = self._sum(found["sum"].replace(OPEN, "(").replace(CLOSE, ")"))
            return f"\ue008(({found['sum']}))\ue009" if value is None else str(value)
        name = found["bare"] or found["name"]
        words = self.values.get(name)
        if words is not None:
            text = words[0].text if words else ""
            # a dollar sign in a value is a literal one: it is not expanded again
            return text.replace("$", LITERAL_DOLLAR).replace("`", LITERAL_TICK)
        if found["default"] is not None and name not in self.values:
            return found["default"]
        return f"\ue008{name}\ue009"

    def _sum(self, text: str) -> int | None:
        try:
            return self._number(ast.parse(text, mode="eval").body)
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
            return None

    def _number(self, node: ast.expr) -> int:
        """Evaluate an expression of integers and variables with `+`, `-`, `*` and `/`.

        Raises:
            ValueError: if the expression contains anything else, a variable whose value is not a
                known integer, or a number beyond `LARGEST`.
            ZeroDivisionError: if the expression divides by zero.
        """
        value: object = None
        if isinstance(node, ast.Constant):
            value = node.value
        elif isinstance(node, ast.Name):
            words = self.values.get(node.id)
            if words:
                value = int(words[0].text[:20])
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            value = OPERATORS[type(node.op)](self._number(node.left), self._number(node.right))
        if type(value) is not int or abs(value) > LARGEST:
            raise ValueError(node)
        return value

    def _counted(self, words: list[Word]) -> list[Word]:
        self.characters += sum(len(word.text) + 1 for word in words)
        if self.characters > MOST_TOTAL:
            raise TooLong
        return words
