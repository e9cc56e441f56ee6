"""TRL's support for chat templates: parsing a model's tool calls, and templates for training."""

from collections.abc import Collection, Mapping
from typing import Any, cast

import trl.chat_template_utils
from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import (
    add_response_schema,
    get_training_chat_template,
    gptoss_template,
    parse_response,
)

TRL_FIELDS = cast(Mapping[str, dict[str, Any]], gptoss_template["fields"])
# gpt-oss itself writes the recipient of a call after the channel, its template before it. TRL reads
# only the second form, and drops text in the channel `commentary`.
HARMONY_FIELDS = {
    "content": {
        "open_pattern": r"<\|channel\|>(?:final|commentary)<\|message\|>",
        "close_pattern": r"<\|(?:return|end)\|>\s*",
        "content": "text",
    },
    "tool_calls": {
        **TRL_FIELDS["tool_calls"],
        "open_pattern": (
            r"(?:<\|channel\|>commentary )?to=functions\.(?P<name>[^\s<]+)"
            r"(?:<\|channel\|>commentary)?\s+(?:<\|constrain\|>)?json<\|message\|>"
        ),
    },
}


def can_parse(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the tokenizer has a response template or schema, which `parse` needs."""
    return any(
        getattr(tokenizer, name, None) is not None
        for name in ("response_template", "response_schema")
    )


def learn_to_parse(tokenizer: PreTrainedTokenizerBase) -> None:
    """Add a response template or schema to the tokenizer in place, unless it already has one.

    Raises:
        ValueError: if TRL cannot parse the tool calls of the tokenizer's chat template.
    """
    if can_parse(tokenizer):
        return
    try:
        add_response_schema(tokenizer)
    except ValueError as error:
        raise ValueError(
            "TRL cannot parse the tool calls of this chat template. Use a model with a template "
            "that TRL supports, or describe the tools in the prompt, and parse the calls in `step` "
            "of an environment."
        ) from error
    if tokenizer.response_template is gptoss_template:
        fields = {**TRL_FIELDS, **HARMONY_FIELDS}
        tokenizer.response_template = {**gptoss_template, "fields": fields}


def parsed_fields(tokenizer: PreTrainedTokenizerBase) -> Collection[str]:
    """Return the fields of a message that `parse` can find; empty without a response template."""
    template = getattr(tokenizer, "response_template", None)
    return template["fields"] if isinstance(template, dict) else ()


def parse(
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    prefix: list[int],
    tools: list[Any],
) -> dict[str, Any]:
    """Parse a turn of the model.

    Args:
        tokenizer: a tokenizer for which `can_parse` is true.
        ids: the tokens of the turn.
        prefix: the tokens before the turn.
        tools: the functions that the turn may call.

    Returns:
        A chat message, with `tool_calls` if the turn calls tools.
    """
    if not ids:
        return {"role": "assistant", "content": ""}
    return parse_response(tokenizer, ids, prefix=prefix, tools=tools)


def training_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return TRL's training variant of the chat template, which keeps earlier turns as sampled.

    Return `None` if the template needs no variant, or TRL has none for it.
    """
    try:
        return get_training_chat_template(tokenizer)
    except Exception:  # TRL refuses templates that it does not know, or may fail on them
        return None


def is_training_template(template: str | dict[str, str] | None) -> bool:
    """Return whether a chat template is one of TRL's training variants."""
    for name, variant in vars(trl.chat_template_utils).items():
        if name.endswith("_training_chat_template") and variant == template:
            return True
    return False
