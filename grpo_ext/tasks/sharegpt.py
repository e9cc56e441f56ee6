"""Convert ShareGPT conversations, `[{"from": "human", "value": ...}, ...]`, to chat messages."""

from typing import Any, TypeGuard

KEYS = {"from", "value"}
ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
}


def chat_messages(prompt: object) -> Any:
    """Convert a conversation in ShareGPT's format to messages with `role` and `content`.

    Any other prompt is returned unchanged. Unlike TRL's `maybe_convert_to_chatml`, this also
    converts the roles, because a chat template would skip messages with the roles `human` and
    `gpt`, or raise an error.

    Raises:
        ValueError: if a sender, such as `function_call`, has no counterpart among the chat roles.
    """
    if not is_sharegpt(prompt):
        return prompt
    return [{"role": role_of(message["from"]), "content": message["value"]} for message in prompt]


def is_sharegpt(prompt: object) -> TypeGuard[list[dict[str, Any]]]:
    """Return whether a prompt is a non-empty list of messages that have `from` and `value`."""
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(isinstance(message, dict) and message.keys() >= KEYS for message in prompt)


def role_of(sender: str) -> str:
    """Return the chat role for a value of `from`; raise `ValueError` if it is unknown."""
    if sender not in ROLES:
        raise ValueError(
            f"a message is from {sender!r}, but conversations with `from` and `value` may "
            f"only have messages from {', '.join(ROLES)}. Convert the data to messages with "
            "`role` and `content`."
        )
    return ROLES[sender]
