"""The texts that end a turn of the model, `stop_strings` in `generation_kwargs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_ext.rewards.scores import clipped

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEY = "stop_strings"


def stop_strings_of(options: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the stop strings in `generation_kwargs`.

    Raises:
        ValueError: if they are not texts, or one of them is empty.
    """
    given = (options or {}).get(KEY) or []
    texts = [given] if isinstance(given, str) else given
    is_list = isinstance(texts, list | tuple)
    if not is_list or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(
            "generation_kwargs: stop_strings must be a text or a list of texts, none of them "
            f"empty, but is {clipped(given)}."
        )
    return tuple(texts)


class StopStrings:
    """Finds the token that completes a stop string in a turn.

    Args:
        tokenizer: the model's tokenizer.
        texts: the stop strings.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]):
        self.tokenizer = tokenizer
        self.texts = tuple(texts)
        # A token has at least one byte. Some tokenizers drop a space before the first one.
        self._most_tokens = 1 + max(len(text.encode()) for text in texts)

    def end_with(self, ids: list[int], first: int) -> bool:
        """Return whether the last token completes a stop string.

        Call it for each token of a turn, since it reads only the last tokens.

        Args:
            ids: all tokens.
            first: the index of the first token of the turn.
        """
        first = max(first, len(ids) - self._most_tokens)
        end = str(self.tokenizer.decode(ids[first:], clean_up_tokenization_spaces=False))
        return any(text in end for text in self.texts)
