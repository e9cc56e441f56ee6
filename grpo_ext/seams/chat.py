"""What TRL knows of chat templates: calls in a model's answer, and templates that keep earlier turns as they were sampled."""

from typing import Any

from trl.chat_template_utils import add_response_schema, get_training_chat_template, parse_response


def can_parse(tokenizer: Any) -> bool:
    """Whether the tokenizer can parse answers of its model."""
    return any(
        getattr(tokenizer, name, None) is not None
        for name in ("response_template", "response_schema")
    )


def learn_to_parse(tokenizer: Any) -> None:
    """Enable the tokenizer to parse calls; `ValueError` if TRL does not know its chat template."""
    if not can_parse(tokenizer):
        add_response_schema(tokenizer)


def parse(tokenizer: Any, ids: list[int], prefix: list[int], tools: Any) -> dict[str, Any]:
    """Return the turn `ids` after the tokens `prefix` as a chat message, with `tool_calls` if it calls `tools`."""
    if not ids:
        return {"role": "assistant", "content": ""}
    return parse_response(tokenizer, ids, prefix=prefix, tools=tools)


def training_template(tokenizer: Any) -> str | None:
    """Return TRL's variant of a known chat template that keeps earlier turns as they were sampled, or `None`."""
    try:
        return get_training_chat_template(tokenizer)
    except Exception:  # it refuses templates that it does not know, and may fail on them
        return None
