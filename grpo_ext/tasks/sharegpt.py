"""Conversations in ShareGPT's form, `[{"from": "human", "value": ...}, ...]`, as chat messages."""

from typing import Any

ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
}


def chat_messages(prompt: Any) -> Any:
    """Return a conversation of ShareGPT's form as messages with `role` and `content`; anything else unchanged.

    TRL's `maybe_convert_to_chatml` renames the keys and leaves roles as they are: a chat template would skip, or refuse,
    `human` and `gpt`.

    Raises:
        ValueError: for a role without a counterpart, such as that of a tool call.
    """
    if not is_sharegpt(prompt):
        return prompt
    return [{"role": role_of(message["from"]), "content": message["value"]} for message in prompt]


def is_sharegpt(prompt: Any) -> bool:
    """Whether all messages of a prompt have `from` and `value`."""
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(isinstance(message, dict) and {"from", "value"} <= {*message} for message in prompt)


def role_of(sender: Any) -> str:
    """Return the role of the value of `from`."""
    if sender not in ROLES:
        raise ValueError(
            f"a message is from {sender!r}: conversations with `from` and `value` are read if all messages are from "
            f"{', '.join(ROLES)}. Write this data as messages with `role` and `content`."
        )
    return ROLES[sender]
