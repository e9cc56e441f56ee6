"""An episode as one text, in which the turns of the model and the answers of its environment can be
told apart.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

Message = dict[str, Any]
LIKE_AN_ANSWER = re.compile(r"^(?=\\*>)", re.MULTILINE)


def as_text(messages: Sequence[Message]) -> str:
    r"""Return an episode as text.

    Each line of an answer of the environment stands behind `> `. A line of the model that begins
    with `>`, or with backslashes and `>`, gets one more backslash before it, so that no turn can
    imitate an answer. Answers without a turn between them read as one.
    """
    return transcript((m["role"] == "assistant", as_read(m)) for m in messages)


def transcript(messages: Iterable[tuple[bool, str]]) -> str:
    """Return the text of messages; each is whether the model wrote it, and its content."""
    return "\n".join(
        LIKE_AN_ANSWER.sub(r"\\", content) if wrote else "> " + content.replace("\n", "\n> ")
        for wrote, content in messages
    )


def as_read(message: Message) -> str:
    """Return the text of a message, with calls as `name({"argument": 1})`."""
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    shown = [
        f"{call.get('name')}({json.dumps(call.get('arguments'), ensure_ascii=False, default=str)})"
        for call in calls
    ]
    thoughts = (
        [f"<think>\n{message['reasoning_content']}\n</think>"]
        if message.get("reasoning_content")
        else []
    )
    return "\n".join(thoughts + [str(message["content"])] * bool(message.get("content")) + shown)
