"""Encode prompts as token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo_ext.common.run_time import counted
from grpo_ext.common.user_code import TooLate, deadline

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_SECONDS = 10.0  # time limit for compiling a template
PROMPT_SECONDS = 0.05  # time limit for rendering one prompt, about a hundred times the usual time


def encode_prompts(
    prompts: list[Any],
    tokenizer: PreTrainedTokenizerBase,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> list[list[int]]:
    """Return the token ids of each prompt, applying the chat template to chat messages.

    Args:
        prompts: at least one prompt; all are strings, or all are lists of chat messages.
        tokenizer: the tokenizer; it must have a chat template if the prompts are messages.
        chat_template_kwargs: further arguments for the chat template.

    Raises:
        ValueError: if applying the chat template takes too long. A template is a program, which may
            loop endlessly.
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
            f"for {counted(len(prompts), 'prompt')}. Check the template for an endless loop."
        ) from None
    return encoded["input_ids"]
