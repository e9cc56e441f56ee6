"""TRL's knowledge of chat templates: tool calls in an answer, and templates for training."""

from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import add_response_schema, get_training_chat_template, parse_response


def can_parse(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer can parse answers of its model."""
    return any(
        getattr(tokenizer, name, None) is not None
        for name in ("response_template", "response_schema")
    )


def learn_to_parse(tokenizer: PreTrainedTokenizerBase) -> None:
    """Enable the tokenizer to parse calls; `ValueError` if TRL does not know its chat template."""
    if not can_parse(tokenizer):
        add_response_schema(tokenizer)


def parse(
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    prefix: list[int],
    tools: list[Any],
) -> dict[str, Any]:
    """Parse a turn of the model.

    Args:
        tokenizer: can parse answers of its model (see `can_parse`).
        ids: the tokens of the turn.
        prefix: the tokens before it.
        tools: the functions that it may call.

    Returns:
        A chat message, with `tool_calls` if the turn calls tools.
    """
    if not ids:
        return {"role": "assistant", "content": ""}
    return parse_response(tokenizer, ids, prefix=prefix, tools=tools)


def training_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return TRL's variant of a chat template that keeps earlier turns as they were sampled.

    `None` if TRL does not know the tokenizer's template.
    """
    try:
        return get_training_chat_template(tokenizer)
    except Exception:  # it refuses templates that it does not know, and may fail on them
        return None
