"""Prompts as the token ids that a model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_prompts(
    prompts: list[Any],
    tokenizer: PreTrainedTokenizerBase,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> list[list[int]]:
    """Return the token ids of each prompt: chat messages by the chat template, plain text by the
    tokenizer.
    """
    if isinstance(prompts[0], str):
        return tokenizer(prompts)["input_ids"]
    encoded: Any = tokenizer.apply_chat_template(
        prompts,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **(chat_template_kwargs or {}),
    )
    return encoded["input_ids"]
