r"""Find `<think>` blocks, `<answer>` blocks, code blocks and `\boxed{}` in linear time."""

import re
from typing import NamedTuple

THINK = "<think>"
THINK_END = "</think>"
ANSWER = "<answer>"
ANSWER_END = "</answer>"
TAGS = (THINK, THINK_END, ANSWER, ANSWER_END)
_BOX = r"\boxed{"
_BETWEEN_BOXES = re.compile(
    r"[\s$.]{0,4}(?:\\[)\]])?(?:,|;|\s(?:and|or)\s|,\s?(?:and|or)\s)[\s$]{0,4}(?:\\[(\[])?"
    r"\s?(?:[A-Za-z]\s?=\s?)?"
)
MAX_BOXES = 10  # maximum number of boxes in one answer
_THOUGHT = re.compile(rf"{THINK}.*?(?:{THINK_END}|\Z)", re.DOTALL)
_LANGUAGE = r"[\w+#.-]+"  # of a code block
_ATTRIBUTES = r"(?:[ \t:{][^`\n]*)?\r?\n"  # after the language
# code in a single line, or a block, which also ends where a block with a language begins
_CODE_BLOCK = re.compile(
    rf"```[^`\n]+```|```(?:(?P<language>{_LANGUAGE}){_ATTRIBUTES}|[ \t]*\r?\n)"
    rf"(?P<content>.*?)(?:(?=```{_LANGUAGE}{_ATTRIBUTES})|(?P<end>```)|\Z)",
    re.DOTALL,
)


def without_thoughts(text: str) -> str:
    """Replace the thoughts in `text` with spaces, which preserves character offsets.

    The thoughts are all `<think>` blocks, including an unclosed last one, and any text before a
    `</think>` without an opening tag.
    """
    text = without_blocks(text)
    end = lone_end(text)
    return " " * end + text[end:]


def without_blocks(text: str) -> str:
    """Replace each `<think>` block, including an unclosed last one, with spaces."""
    return _THOUGHT.sub(lambda block: " " * len(block.group()), text)


def lone_end(text: str) -> int:
    """Return the offset after the last `</think>`, or 0 if there is none.

    The `<think>` blocks in `text` must have been blanked (see `without_blocks`); otherwise, the
    offset may be that of a block's end.
    """
    start = text.rfind(THINK_END)
    if start < 0:
        return 0
    return start + len(THINK_END)


def only_thoughts(text: str) -> str:
    """Replace everything except the thoughts with spaces, which preserves character offsets.

    The thoughts are all `<think>` blocks, including an unclosed last one, and any text before a
    `</think>` without an opening tag. The think tags become line breaks. Without think tags, the
    result is blank.
    """
    end = lone_end(without_blocks(text))  # the end of the thoughts found so far
    segments = [text[:end]]
    for block in _THOUGHT.finditer(text):
        if block.start() >= end:
            segments.append(" " * (block.start() - end))
            segments.append(block[0])
            end = block.end()
    segments.append(" " * (len(text) - end))
    thoughts = "".join(segments)
    for tag in (THINK, THINK_END):
        thoughts = thoughts.replace(tag, "\n" * len(tag))
    return thoughts


def first_span(text: str) -> tuple[int, int] | None:
    """Return the offsets (start, end) of the content of the first `<answer>` block.

    Return `None` if there is no `<answer>` tag, or if the first one is not closed.
    """
    start = text.find(ANSWER)
    if start < 0:
        return None
    end = text.find(ANSWER_END, start)
    if end < 0:
        return None
    return start + len(ANSWER), end


def last_span(text: str) -> tuple[int, int] | None:
    """Return the offsets (start, end) of the content of the last closed `<answer>` block.

    Return `None` if there is no closed block.
    """
    end = text.rfind(ANSWER_END)
    if end < 0:
        return None
    start = text.rfind(ANSWER, 0, end)
    if start < 0:
        return None
    # the block ends at the first closing tag, because a later one may be stray
    return start + len(ANSWER), text.find(ANSWER_END, start)


class CodeBlock(NamedTuple):
    """A fenced code block of Markdown."""

    language: str  # in lower case; "" if the block has none
    content: str
    is_closed: bool


def code_blocks(text: str) -> list[CodeBlock]:
    """Return the code blocks between fences of three backticks, in order.

    An opening fence ends its line. A block ends at the next three backticks, which are its closing
    fence unless a language follows them, or at the end of the text. Code in a single line is
    skipped.
    """
    blocks = []
    for match in _CODE_BLOCK.finditer(text):
        if match["content"] is not None:
            language = (match["language"] or "").lower()
            blocks.append(CodeBlock(language, match["content"], match["end"] is not None))
    return blocks


def first_answer(text: str) -> str | None:
    """Return the content of the first `<answer>` block; `None` if it is missing or not closed."""
    return text_at(text, first_span(text))


def last_answer(text: str) -> str | None:
    """Return the content of the last closed `<answer>` block; `None` if there is none."""
    return text_at(text, last_span(text))


def answer_without_thoughts(text: str) -> str:
    """Return the content of the last closed `<answer>` block outside the thoughts.

    If there is none or it is empty, return all text outside the thoughts. Whitespace around the
    answer is removed.
    """
    remainder = without_thoughts(text)
    return (last_answer(remainder) or remainder).strip()


def text_at(text: str, span: tuple[int, int] | None) -> str | None:
    """Return the part of `text` at the offsets `span`, or `None` if `span` is `None`."""
    if span is None:
        return None
    return text[slice(*span)]


def last_boxed(text: str, limit: int = 10_000) -> str | None:
    r"""Return the content of the last `\boxed{...}`.

    Return `None` if there is no box, or if the last one is not closed within `limit` characters.
    """
    return text_at(text, boxed_span(text, len(text), limit))


def last_boxes(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`, or of all boxes in the list that ends with it.

    The boxes of a list are separated by a comma, a semicolon, "and" or "or": for
    `x = \boxed{1} and x = \boxed{2}`, return `1, 2`. At most `MAX_BOXES` boxes form a list. Return
    `None` if there is no box, or if the last one is not closed within 10,000 characters.
    """
    span = boxed_span(text, len(text))
    if span is None:
        return None
    start, end = span
    contents = [text[start:end]]
    while len(contents) < MAX_BOXES:
        box_start = start - len(_BOX)
        span = boxed_span(text, box_start)
        if span is None:
            break
        start, end = span
        if not _BETWEEN_BOXES.fullmatch(text, end + 1, box_start):
            break
        contents.append(text[start:end])
    return ", ".join(reversed(contents))


def boxed_span(text: str, end: int, limit: int = 10_000) -> tuple[int, int] | None:
    r"""Return the offsets (start, end) of the content of the last `\boxed{...}` before `end`.

    Return `None` if there is no such box, or if it is not closed within `limit` characters.

    Args:
        text: the text to search.
        end: the offset before which `\boxed{` must end.
        limit: the number of characters after `\boxed{` that are searched for the closing brace.
    """
    start = text.rfind(_BOX, 0, end)
    if start < 0:
        return None
    start += len(_BOX)
    depth = 1
    for position in range(start, min(len(text), start + limit)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
        if depth == 0:
            return start, position
    return None
