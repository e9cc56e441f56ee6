"""Prompts as the token ids that a model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo_ext.common.deadline import TooLate, deadline

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_SECONDS = 10.0  # to compile a template
PROMPT_SECONDS = 0.05  # to render one prompt, a hundred times what it needs


def encode_prompts(
    prompts: list[Any],
    tokenizer: PreTrainedTokenizerBase,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> list[list[int]]:
    """Return the token ids of each prompt; chat messages go through the chat template.

    Raises:
        ValueError: the chat template takes too long; it is a program, which may have no end.
    """
    if isinstance(prompts[0], str):
        return tokenizer(prompts)["input_ids"]
    seconds = TEMPLATE_SECONDS + PROMPT_SECONDS * len(prompts)
    try:
        with deadline(seconds):
            encoded: Any = tokenizer.apply_chat_template(
                prompts,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                **(chat_template_kwargs or {}),
            )
    except TooLate:
        raise ValueError(
            f"the chat template of {tokenizer.name_or_path} took more than {seconds:.0f} seconds "
            f"for {len(prompts)} prompts. Does it end? Read chat_template.jinja beside the "
            "tokenizer."
        ) from None
    return encoded["input_ids"]
