"""Language consistency: the share of a completion in the script of the wanted language."""

import re
from typing import TYPE_CHECKING, Literal

from grpo_ext.common.files import data_yaml
from grpo_ext.rewards.registry import register
from grpo_ext.rewards.reward import Example

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

_CHINESE = {"language": "zh"}


@register(
    "language_consistency",
    examples=[
        Example("<think>\nSo it is 42.\n</think>", 1.0),
        Example("所以答案是 42", 0.0),
        Example("so 答案", 1 / 3),
        Example("<answer>答案是 $\\frac{x}{2}$</answer>", 1.0, options=_CHINESE),
        Example("the answer", 0.0, options=_CHINESE),
        Example("答えは四十二です", 1.0, options={"language": "ja"}),
        Example("ответ 42", 1.0, options={"language": "ru"}),
    ],
)
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
