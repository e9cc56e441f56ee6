"""Rewards for the form of a completion: tags, step markers, length, language."""

import re
from itertools import islice
from typing import Any, Literal

from pydantic import PositiveInt

from grpo_ext.common.files import data_yaml
from grpo_ext.rewards.answers import TAGS
from grpo_ext.rewards.completion_parts import Part, part_of
from grpo_ext.rewards.registry import register

MAX_LENGTH = 200_000  # characters of a completion that are searched for steps or words
# The tags with the line breaks that the strict form requires.
TAG_LINES = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
Mode = Literal["strict", "loose"]
FORMS = {
    "strict": re.compile(r"<think>\n.*\n</think>\n<answer>\n.*\n</answer>", re.DOTALL),
    "loose": re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL),
}


@register("format")
def format_(completions: list[str], *, mode: Mode = "loose", prefix: str = "") -> list[float]:
    r"""1 if the completion is one <think> block followed by one <answer> block, else 0.

    Each tag must occur exactly once, with no text outside the blocks. The blocks may be empty;
    with "strict", an empty block still needs both line breaks.

    Args:
        mode: "loose" allows any whitespace around tags and blocks; "strict" requires exactly
            `<think>\n..\n</think>\n<answer>\n..\n</answer>`.
        prefix: text to prepend to each completion, for prompts that already contain the first tag.
    """
    scores = []
    for completion in completions:
        text = prefix + completion
        # The patterns take linear time if each tag occurs only once.
        has_each_tag_once = all(text.count(tag) == 1 for tag in TAGS)
        scores.append(float(has_each_tag_once and FORMS[mode].fullmatch(text) is not None))
    return scores


@register("tag_count")
def tag_count(completions: list[str], *, mode: Mode = "loose", prefix: str = "") -> list[float]:
    """0.25 for each of <think>, </think>, <answer>, </answer> that occurs exactly once.

    Args:
        mode: "loose" counts a tag alone; "strict" counts it only together with the line breaks that
            the reward `format` requires in its strict mode.
        prefix: text to prepend to each completion, for prompts that already contain the first tag.
    """
    tags = TAG_LINES if mode == "strict" else TAGS
    scores = []
    for completion in completions:
        text = prefix + completion
        scores.append(0.25 * sum(text.count(tag) == 1 for tag in tags))
    return scores


# A match at the start of a line stays within that line, so that no run of line breaks is scanned
# more than once.
_STEP = re.compile(
    r"^[ \t]*(?:step[ \t]+[0-9]|[0-9]{1,3}[.)](?![0-9])|[-*•][ \t])"
    r"|\b(?:first|firstly|second|secondly|third|next|then|finally),",
    re.IGNORECASE | re.MULTILINE,
)


@register("reasoning_steps")
def reasoning_steps(completions: list[str], *, target: PositiveInt = 3) -> list[float]:
    """The number of step markers in the completion divided by `target`, at most 1.

    Step markers are "Step 1", "Step 2" etc. at the start of a line, numbered and bulleted lines,
    and the words "First,", "Firstly,", "Second,", "Secondly,", "Third,", "Next,", "Then," and
    "Finally," anywhere. Case is ignored. Only the first 200,000 characters are searched.

    Args:
        target: the number of step markers that scores 1.
    """
    scores = []
    for completion in completions:
        steps = list(islice(_STEP.finditer(completion, 0, MAX_LENGTH), target))
        scores.append(len(steps) / target)
    return scores


@register("length")
def length(
    completions: list[str],
    completion_ids: list[list[int]] | None = None,
    *,
    target: PositiveInt,
    prefer: Literal["shorter", "longer", "near"] = "shorter",
    unit: Literal["tokens", "characters", "words"] = "tokens",
) -> list[float]:
    """1 if the length is as preferred, and less the farther it is from `target`; 0 for length 0.

    For a length n, the score is min(1, target / n) with "shorter", min(1, n / target) with
    "longer", and the smaller of the two with "near".

    Args:
        completion_ids: the token ids of each completion, which are counted if `unit` is "tokens".
        target: the target length, in `unit`.
        prefer: "shorter" (at most the target), "longer" (at least the target) or "near".
        unit: "tokens" (the trainer's token ids), "characters" or "words" (separated by whitespace).

    Raises:
        ValueError: if `unit` is "tokens" and there are no token ids.
    """
    if unit == "words":
        lengths = [len(completion.split()) for completion in completions]
    elif unit == "characters":
        lengths = [len(completion) for completion in completions]
    elif completion_ids is None:
        raise ValueError(
            "length: there are no token ids to count here. Set `unit: characters` or `unit: words`."
        )
    else:
        lengths = [len(ids) for ids in completion_ids]
    scores = []
    for n in lengths:
        score = 1.0
        if n == 0:
            score = 0.0
        elif n > target and prefer != "longer":
            score = target / n
        elif n < target and prefer != "shorter":
            score = n / target
        scores.append(score)
    return scores


_TABLE = data_yaml("grpo_ext.rewards", "scripts.yaml")
LANGUAGES: dict[str, list[str]] = _TABLE["languages"]  # the scripts of each language
Language: Any = Literal[tuple(LANGUAGES)]  # type checkers cannot read a computed Literal

# Commands and tags belong to no language; a letter of an unlisted script counts as a word.
_WORD = re.compile(
    r"\\[A-Za-z]+|</?[a-z_]{1,20}>|"
    + "|".join(f"(?P<{script}>{letters})" for script, letters in _TABLE["scripts"].items())
    + r"|(?P<other>[^\W\d_])"
)


@register("language_consistency")
def language_consistency(
    completions: list[str], *, language: Language = "en", part: Part = "all"
) -> list[float]:
    """The share of words that are in the script of `language`; 1 if there are no words.

    Each Chinese, Japanese or Thai character counts as a word. Digits, punctuation, tags and LaTeX
    commands do not count as words, nor do single Latin letters if the language has another script.
    Languages that share a script are not distinguished. Only the first 200,000 characters count.

    Args:
        language: the two-letter code of the language, such as "en", "zh", "ja", "ko", "ru" or "de".
        part: the part of a completion that is judged: "all", "thoughts" or "answer". With
            "thoughts" or "answer", a completion without that part scores 0, so that a model cannot
            earn the reward by leaving out its thoughts.
    """
    scores = []
    for completion in completions:
        text = part_of(completion, part)
        if part != "all" and not text.strip():
            scores.append(0.0)
        else:
            scores.append(share_in_scripts(text, LANGUAGES[language]))
    return scores


def share_in_scripts(text: str, scripts: list[str]) -> float:
    """Return the share of words that are in one of `scripts`, or 1 if there are no words.

    Tags and LaTeX commands do not count as words, nor do single Latin letters unless `scripts`
    includes "latin". Only the first `MAX_LENGTH` characters of `text` count.
    """
    matching = 0
    total = 0
    for word in _WORD.finditer(text, 0, MAX_LENGTH):
        script = word.lastgroup
        if script is None:  # a command or a tag
            continue
        if script in scripts:
            matching += 1
        elif script == "latin" and len(word[0]) == 1:  # a symbol, such as x
            continue
        total += 1
    return matching / total if total else 1.0
