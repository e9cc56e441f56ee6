"""Read the commands of a shell script without running anything.

Variables that are set to literals, arrays of literals or integer arithmetic are substituted, unless
they are set in a condition, a loop, a function or a subshell, or after `&&`, `||` or `|`, or are
extended with `+=` and are not arrays. Defaults such as `${A:-1}` are substituted if the script does
not set the variable. `$@` and `$*` are dropped. All other expansions stay as they are and are
marked as unknown.
"""

import re
import shlex
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from itertools import takewhile

from grpo_ext.migrate.shell_text import CONTINUED, prepared
from grpo_ext.migrate.shell_values import TooLong, Variables, Word

MOST_BYTES = 2**18  # size limit of a script
MOST_WORDS = 20_000
ENDS = ";&|()<>\n"  # characters that end a word
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
OPENERS = ("if", "for", "while", "until", "case", "select", "{")
CLOSERS = ("fi", "done", "esac", "}")
BETWEEN = ("then", "else", "elif", "do", "!", "time", "exec", "nohup")
FUNCTION = "function"  # in `function name {`
# the exported variables that a launcher reads
LAUNCHER_VARIABLES = ("NPROC_PER_NODE", "NNODES")
DECLARES = ("export", "declare", "local", "readonly", "typeset")


class ScriptFault(ValueError):
    """Raised if a script cannot be read."""


@dataclass(frozen=True)
class Command:
    """A command: its words, and the environment variables that are known to be set for it.

    `environment` contains the assignments in front of the command and the exported variables in
    `LAUNCHER_VARIABLES`.
    """

    words: list[Word]
    environment: dict[str, Word] = field(default_factory=dict)


def read_commands(text: str) -> list[Command]:
    """Return the commands of a shell script, with known variables substituted.

    Raises:
        ScriptFault: if the script ends within a quote or after a backslash, if it has too many
            words, or if its variables expand to too many characters.
    """
    script = _Script()
    try:
        for token, line in _tokens(prepared(text)):
            script.read(token, line)
        script.finish()
    except TooLong:
        raise ScriptFault(
            "its variables expand to too many characters. Replace the variables with their values."
        ) from None
    return script.commands


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """Yield each word, and each run of `ENDS` characters between words, with its line number.

    Raises:
        ScriptFault: if the text ends within a quote or after a backslash, or if there are too many
            words.
    """
    stream = StringIO(text)
    lexer = shlex.shlex(stream, posix=True, punctuation_chars=ENDS)
    lexer.whitespace = f" \t\r{CONTINUED}"
    lexer.whitespace_split = True
    lexer.commenters = ""
    breaks = [place for place, character in enumerate(text) if character in f"\n{CONTINUED}"]
    for count in range(MOST_WORDS + 1):
        try:
            token = lexer.get_token()
        except ValueError:
            raise ScriptFault(
                "it ends within a quote or after a backslash. Close the quote, or remove the "
                "backslash."
            ) from None
        if token is None:
            return
        if count == MOST_WORDS:
            raise ScriptFault(f"it has more than {MOST_WORDS:,} words. Keep only the command.")
        yield token, bisect_right(breaks, stream.tell() - 2) + 1


class _Script:
    """Collects the commands of a script, which is passed to `read` token by token."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.variables = Variables()
        self.words: list[tuple[str, int]] = []
        self.array: list[Word] | None = None  # the words of an array that is not closed
        self.depth = 0  # how deep conditions, loops and functions are nested
        self.subshells = 0  # number of open parentheses
        self.chained = False  # the current command follows `&&`, `||` or `|`
        self.skips = False  # the next word is the file of a redirection
        self.exported: set[str] = set()

    def read(self, token: str, line: int) -> None:
        if not token or token.strip(ENDS):  # an empty word was quoted
            self._word(token, line)
        elif self.array is not None:
            if ")" in token:
                self._close_array()
        elif token[0] in "<>":
            self.skips = True
            self._count_subshells(token)
        elif token[0] == "(" and self.words and self.words[-1][0].endswith("="):
            self.array = []
            if ")" in token:
                self._close_array()
        else:
            ends_command = bool(self.words)
            self.finish()
            self._count_subshells(token)
            if "&&" in token or "|" in token:
                self.chained = True
            elif ends_command:
                self.chained = False

    def _count_subshells(self, token: str) -> None:
        opened = self.subshells + token.count("(") - token.count(")")
        self.subshells = max(0, opened)  # a pattern in `case` has only a closing parenthesis

    @property
    def _certain(self) -> bool:
        """Whether the current command always runs, and runs in the script's own shell."""
        return self.depth == 0 and self.subshells == 0 and not self.chained

    def _word(self, token: str, line: int) -> None:
        if self.skips:
            self.skips = False
        elif self.array is not None:
            self.array += self.variables.expand(token, line)
        else:
            self.words.append((token, line))

    def _close_array(self) -> None:
        token, _ = self.words.pop()
        if assigned := ASSIGNMENT.fullmatch(token):
            words = list(self.array or [])
            if token.endswith("+="):
                words = [*(self.variables.values.get(assigned[1]) or []), *words]
            self.variables.set(assigned[1], words, self._certain)
        self.array = None
        self.chained = False

    def finish(self) -> None:
        """End the current command: append it, or set its variables if it only assigns."""
        words = self.words
        self.words = []
        self.skips = False
        while words and words[0][0] in (*OPENERS, *CLOSERS, *BETWEEN, FUNCTION):
            keyword = words.pop(0)[0]
            if keyword == FUNCTION:
                del words[:1]  # the function's name
            self.depth += keyword in OPENERS
            self.depth = max(0, self.depth - (keyword in CLOSERS))
            if keyword in ("for", "select") and words:
                self.variables.values[words[0][0]] = None
        if words and words[0][0] in DECLARES:
            for token, line in words[1:]:
                self._assign(token, line)
                self.exported.add(token.partition("=")[0])
            return
        settings = list(takewhile(lambda word: ASSIGNMENT.fullmatch(word[0]), words))
        if len(settings) == len(words):
            for token, line in settings:
                self._assign(token, line)
            return
        environment = self._environment()
        for token, line in settings:
            name, _, value = token.partition("=")
            environment[name.rstrip("+")] = self._value(value, line)
        expanded: list[Word] = []
        for token, line in words[len(settings) :]:
            expanded += self.variables.expand(token, line)
        if expanded:
            self.commands.append(Command(expanded, environment))

    def _environment(self) -> dict[str, Word]:
        """Return the `LAUNCHER_VARIABLES` that are exported and have a known value."""
        known = {}
        for name in LAUNCHER_VARIABLES:
            words = self.variables.values.get(name)
            if words and name in self.exported:
                known[name] = words[0]
        return known

    def _assign(self, token: str, line: int) -> None:
        assigned = ASSIGNMENT.fullmatch(token)
        if assigned is None:
            return
        name = assigned[1]
        certain = self._certain and not token[len(name) :].startswith("+=")
        self.variables.set(name, [self._value(assigned[2], line)], certain)

    def _value(self, text: str, line: int) -> Word:
        """Return the value of an assignment as one word, because the shell does not split it."""
        words = self.variables.expand(text, line)
        if len(words) == 1:
            return words[0]
        return Word(" ".join(word.text for word in words), line)
