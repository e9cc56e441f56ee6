"""Language consistency: the share of a completion in the script of the wanted language."""

import re
from typing import TYPE_CHECKING, Literal

from grpo_ext.rewards.registry import register
from grpo_ext.rewards.reward import Example

MAX_LENGTH = 200_000  # characters of a completion that are read

# Letters of each script. In scripts without spaces each character counts as a word, in others each run of letters.
SCRIPTS = {
    "han": "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003347f々〇]",
    "kana": "[\u3041-\u3096\u30a1-\u30fa\u30fc\uff66-\uff9d]",
    "thai": "[\u0e01-\u0e4e]",
    "latin": "[A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u0300-\u036f\u1d00-\u1dbf\u1e00-\u1eff]+",
    "cyrillic": "[\u0400-\u052f]+",
    "greek": "[\u0370-\u03ff\u1f00-\u1fff]+",
    "arabic": "[\u0620-\u065f\u066e-\u06d3\u06d5-\u06ef\u06fa-\u06ff\u0750-\u077f\u0870-\u08ff]+",
    "hebrew": "[\u05d0-\u05ea]+",
    "devanagari": "[\u0900-\u0963\u0971-\u097f]+",
    "hangul": "[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]+",
}
LANGUAGES = {
    **dict.fromkeys(("en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv", "tr", "vi", "id"), ("latin",)),
    **dict.fromkeys(("ru", "uk", "bg"), ("cyrillic",)),
    **dict.fromkeys(("ar", "fa", "ur"), ("arabic",)),
    **dict.fromkeys(("hi", "mr", "ne"), ("devanagari",)),
    "zh": ("han",),
    "ja": ("han", "kana"),
    "ko": ("hangul",),
    "el": ("greek",),
    "he": ("hebrew",),
    "th": ("thai",),
}
if TYPE_CHECKING:  # type checkers read no computed Literal
    Language = str
else:
    Language = Literal[tuple(LANGUAGES)]

# Commands and tags belong to no language; a letter of any other script counts as a word.
_TOKEN = re.compile(
    r"\\[A-Za-z]+|</?[a-z_]{1,20}>|"
    + "|".join(f"(?P<{script}>{letters})" for script, letters in SCRIPTS.items())
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


def share(text: str, wanted: tuple[str, ...]) -> float:
    """Return the share of words whose script is among `wanted`."""
    right = total = 0
    for token in _TOKEN.finditer(text, 0, MAX_LENGTH):
        script = token.lastgroup
        if script is None or (script == "latin" and script not in wanted and len(token[0]) == 1):
            continue
        total += 1
        right += script in wanted
    return right / total if total else 1.0
