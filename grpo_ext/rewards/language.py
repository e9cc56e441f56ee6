"""Language consistency: the share of a completion in the script of the wanted language."""

import re
from typing import TYPE_CHECKING, Literal

from grpo_ext.common.files import data_yaml
from grpo_ext.rewards.registry import register
from grpo_ext.rewards.reward import shipped_examples

MAX_LENGTH = 200_000  # characters of a completion that are read

_TABLE = data_yaml("grpo_ext.rewards", "scripts.yaml")
LANGUAGES: dict[str, list[str]] = _TABLE["languages"]  # the scripts of each
if TYPE_CHECKING:  # type checkers read no computed Literal
    Language = str
else:
    Language = Literal[tuple(LANGUAGES)]

# Commands and tags belong to no language; a letter of any other script counts as a word.
_TOKEN = re.compile(
    r"\\[A-Za-z]+|</?[a-z_]{1,20}>|"
    + "|".join(f"(?P<{script}>{letters})" for script, letters in _TABLE["scripts"].items())
    + r"|(?P<other>[^\W\d_])"
)


@register("language_consistency", examples=shipped_examples("language_consistency"))
def language_consistency(completions: list[str], *, language: Language = "en") -> list[float]:
    """The share of words in the script of the wanted language; 1 without any words.

    Digits, punctuation, tags and LaTeX commands are not words, nor are single Latin letters in a language with another script.
    The reward does not distinguish languages that share a script.

    Args:
        language: "en", "zh", "ja", "ko", "ru", "de", "fr" and others, by their two-letter codes.
    """
    return [share(text, LANGUAGES[language]) for text in completions]


def share(text: str, wanted: list[str]) -> float:
    """Return the share of words whose script is among `wanted`."""
    right = total = 0
    for token in _TOKEN.finditer(text, 0, MAX_LENGTH):
        script = token.lastgroup
        if script is None or (script == "latin" and script not in wanted and len(token[0]) == 1):
            continue
        total += 1
        right += script in wanted
    return right / total if total else 1.0
