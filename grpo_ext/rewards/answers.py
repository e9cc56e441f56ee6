"""Finds the answer in a completion, with plain string searches in linear time."""

import re

THINK, THINK_END = "<think>", "</think>"
ANSWER, ANSWER_END = "<answer>", "</answer>"
TAGS = (THINK, THINK_END, ANSWER, ANSWER_END)
_BOX = r"\boxed{"
_BETWEEN_BOXES = re.compile(
    r"[\s$.]{0,4}(?:\\[)\]])?(?:,|;|\s(?:and|or)\s|,\s?(?:and|or)\s)[\s$]{0,4}(?:\\[(\[])?\s?(?:[A-Za-z]\s?=\s?)?"
)
MAX_BOXES = 10  # boxes that one answer may be spread over
_THOUGHT = re.compile(rf"{THINK}.*?(?:{THINK_END}|\Z)", re.DOTALL)


def without_thoughts(text: str) -> str:
    """Replace thoughts by blanks: each `<think>` block, closed or cut off, and all text before a lone `</think>`."""
    text = _THOUGHT.sub(lambda block: " " * len(block.group()), text)
    end = text.rfind(THINK_END) + len(THINK_END)
    return " " * end + text[end:] if end >= len(THINK_END) else text


def only_thoughts(text: str) -> str:
    """Return the thoughts: what `without_thoughts` blanks out, with blanks for all other text and line breaks for the tags.

    So the positions of its characters stay the same.
    """
    blocks = [block.span() for block in _THOUGHT.finditer(text)]
    lone_end = _THOUGHT.sub(lambda block: " " * len(block.group()), text).rfind(THINK_END)
    begin = 0 if lone_end < 0 else lone_end + len(THINK_END)
    pieces = [text[:begin]]
    for start, end in blocks:
        if start >= begin:
            pieces += [" " * (start - begin), text[start:end]]
            begin = end
    pieces.append(" " * (len(text) - begin))
    thoughts = "".join(pieces)
    for tag in (THINK, THINK_END):
        thoughts = thoughts.replace(tag, "\n" * len(tag))
    return thoughts


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
    span = boxed_span(text, len(text), limit)
    return text[slice(*span)] if span else None


def last_boxes(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`, with those before it that it continues, as a list.

    In `x = \boxed{1} and x = \boxed{2}` the answer is `1, 2`.
    """
    span = boxed_span(text, len(text))
    if span is None:
        return None
    contents = [text[slice(*span)]]
    while len(contents) < MAX_BOXES:
        begin = span[0] - len(_BOX)
        span = boxed_span(text, begin)
        if span is None or not _BETWEEN_BOXES.fullmatch(text, span[1] + 1, begin):
            break
        contents.append(text[slice(*span)])
    return ", ".join(reversed(contents))


def boxed_span(text: str, end: int, limit: int = 10_000) -> tuple[int, int] | None:
    r"""Return where the content of the last `\boxed{` before `end` begins and ends, or None if it does not close."""
    start = text.rfind(_BOX, 0, end)
    if start < 0:
        return None
    start += len(_BOX)
    depth = 1
    for position in range(start, min(len(text), start + limit)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return start, position
    return None
