"""Format an episode as a single string in which turns and answers can be told apart."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

Message = dict[str, Any]
LIKE_AN_ANSWER = re.compile(r"^(?=\\*>)", re.MULTILINE)


def as_text(messages: Sequence[Message]) -> str:
    r"""Return the messages of an episode as a single string, joined by line breaks.

    Each line of an environment's answer is prefixed with `> `. A line that the model wrote gets an
    additional backslash if it begins with `>`, or with backslashes followed by `>`, so that no turn
    can imitate an answer. Nothing marks the boundary between consecutive answers.
    """
    contents = []
    for message in messages:
        is_turn = message["role"] == "assistant"
        contents.append((is_turn, as_read(message)))
    return transcript(contents)


def transcript(messages: Iterable[tuple[bool, str]]) -> str:
    """Return messages as a single string, in the format of `as_text`.

    Args:
        messages: for each message, whether the model wrote it, and its content.
    """
    parts = []
    for is_turn, content in messages:
        if is_turn:
            parts.append(LIKE_AN_ANSWER.sub(r"\\", content))
        else:
            parts.append("> " + content.replace("\n", "\n> "))
    return "\n".join(parts)


def as_read(message: Message) -> str:
    """Return a message as text: its thoughts in `<think>` tags, its content, and its tool calls.

    A call is written as `name({"argument": 1})`. For an empty message, return an empty string.
    """
    parts = []
    thought = message.get("reasoning_content") or message.get("thinking")
    if thought:
        parts.append(f"<think>\n{thought}\n</think>")
    if message.get("content"):
        parts.append(str(message["content"]))
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        name = function.get("name")
        arguments = function.get("arguments")
        arguments_json = json.dumps(arguments, ensure_ascii=False, default=str)
        parts.append(f"{name}({arguments_json})")
    return "\n".join(parts)
