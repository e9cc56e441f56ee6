"""Finds the answer in a completion, with plain string searches in linear time."""

import re

THINK, THINK_END = "<think>", "</think>"
ANSWER, ANSWER_END = "<answer>", "</answer>"
TAGS = (THINK, THINK_END, ANSWER, ANSWER_END)
_THOUGHT = re.compile(rf"{THINK}.*?(?:{THINK_END}|\Z)", re.DOTALL)


def without_thoughts(text: str) -> str:
    """Replace thoughts by blanks: each `<think>` block, closed or cut off, and all text before a lone `</think>`."""
    text = _THOUGHT.sub(lambda block: " " * len(block.group()), text)
    end = text.rfind(THINK_END) + len(THINK_END)
    return " " * end + text[end:] if end >= len(THINK_END) else text


def first_span(text: str) -> tuple[int, int] | None:
    """Return where the content of the first `<answer>` block begins and ends, or None if no such block is closed."""
    start = text.find(ANSWER)
    end = text.find(ANSWER_END, start) if start >= 0 else -1
    return None if end < 0 else (start + len(ANSWER), end)


def last_span(text: str) -> tuple[int, int] | None:
    """Return where the content of the last closed `<answer>` block begins and ends, or None."""
    end = text.rfind(ANSWER_END)
    start = text.rfind(ANSWER, 0, end) if end >= 0 else -1
    return None if start < 0 else (start + len(ANSWER), end)


def first_answer(text: str) -> str | None:
    """Return the text at `first_span`, or None."""
    return text[slice(*span)] if (span := first_span(text)) else None


def last_answer(text: str) -> str | None:
    """Return the text at `last_span`, or None."""
    return text[slice(*span)] if (span := last_span(text)) else None


def last_boxed(text: str, limit: int = 10_000) -> str | None:
    r"""Return the content of the last `\boxed{...}`, or None if it does not close within `limit` characters."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    start += len(r"\boxed{")
    depth = 1
    for position in range(start, min(len(text), start + limit)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return text[start:position]
    return None
