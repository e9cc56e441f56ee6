"""The format of a completion: the think and answer tags, and marks of step-by-step work."""

import re
from itertools import islice
from typing import Literal

from grpo_ext.rewards.answers import TAGS
from grpo_ext.rewards.registry import register
from grpo_ext.rewards.reward import shipped_examples

MAX_LENGTH = 200_000  # characters of a completion that are searched for steps
# The tags with their line breaks in the strict form.
TAG_LINES = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
Mode = Literal["strict", "loose"]
FORMS = {
    "strict": re.compile(r"<think>\n.*\n</think>\n<answer>\n.*\n</answer>", re.DOTALL),
    "loose": re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL),
}


@register("format", examples=shipped_examples("format"))
def format_(completions: list[str], *, mode: Mode = "loose", prefix: str = "") -> list[float]:
    """1 if the completion is one <think> block followed by one <answer> block, else 0.

    Each tag occurs exactly once, and no text is outside the blocks. The blocks may be empty.

    Args:
        mode: "loose" allows any white space around tags and blocks; "strict" requires exactly
            `<think>\\n..\\n</think>\\n<answer>\\n..\\n</answer>`.
        prefix: text to put before the completion, for prompts that already open the first tag.
    """
    texts = [prefix + text for text in completions]
    once = [all(text.count(tag) == 1 for tag in TAGS) for text in texts]  # so that a pattern matches in linear time
    return [float(ok and FORMS[mode].fullmatch(text) is not None) for ok, text in zip(once, texts, strict=True)]


@register("tag_count", examples=shipped_examples("tag_count"))
def tag_count(completions: list[str], *, mode: Mode = "loose", prefix: str = "") -> list[float]:
    """0.25 for each of <think>, </think>, <answer>, </answer> that occurs exactly once.

    Args:
        mode: "strict" counts a tag only with the line breaks of the strict format.
        prefix: text to put before the completion, for prompts that already open the first tag.
    """
    tags = TAG_LINES if mode == "strict" else TAGS
    return [0.25 * sum((prefix + text).count(tag) == 1 for tag in tags) for text in completions]


# A match at a line start stays within its line, so that no run of line breaks is read more than once.
_STEP = re.compile(
    r"^[ \t]*(?:step[ \t]+[0-9]|[0-9]{1,3}[.)](?![0-9])|[-*•][ \t])"
    r"|\b(?:first|firstly|second|secondly|third|next|then|finally),",
    re.IGNORECASE | re.MULTILINE,
)


@register("reasoning_steps", examples=shipped_examples("reasoning_steps"))
def reasoning_steps(completions: list[str], *, target: int = 3) -> list[float]:
    """The number of marks of step-by-step work, divided by `target`; at most 1.

    Marks are "Step 2", a numbered or bulleted line, and "First,", "Next,", "Then,", "Finally," and the like.

    Args:
        target: how many marks earn the full reward; at least 1.
    """
    if target < 1:
        raise ValueError(f"reasoning_steps: target = {target}, but it must be at least 1.")
    return [sum(1 for _ in islice(_STEP.finditer(text, 0, MAX_LENGTH), target)) / target for text in completions]
