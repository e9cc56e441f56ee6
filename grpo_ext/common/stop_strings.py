"""Read the stop strings from `generation_kwargs`, and find the tokens at which they end a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEY = "stop_strings"
KEY_IN_VLLM = "stop"


def stop_strings_of(options: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the stop strings in `generation_kwargs`, set as `stop_strings`, as `stop` or as both.

    `options` are the `generation_kwargs`; the tuple is empty if they are `None` or set no stop
    strings.

    Raises:
        ValueError: if `stop_strings` or `stop` is neither a string nor a list of strings, or if a
            stop string is empty.
    """
    texts: list[str] = []
    for key in (KEY, KEY_IN_VLLM):
        value = (options or {}).get(key)
        if value is None:
            continue
        entries = [value] if isinstance(value, str) else value
        is_list = isinstance(entries, list | tuple)
        if not is_list or not all(isinstance(entry, str) and entry for entry in entries):
            raise ValueError(
                f"generation_kwargs: {key} must be a string or a list of strings, none of them "
                f"empty, but is {value!r:.200}."
            )
        texts += entries
    return tuple(texts)


class StopStrings:
    """Finds the token that completes a stop string in a turn.

    Args:
        tokenizer: the model's tokenizer.
        texts: the stop strings; at least one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]):
        self.tokenizer = tokenizer
        self.texts = tuple(texts)
        #: How many tokens at the end of a turn to search for a stop string. Each token has at least
        #: one byte. One more is included, because some tokenizers drop the first token's space.
        self.most_tokens = 1 + max(len(text.encode()) for text in texts)

    def cut(self, ids: list[int]) -> list[int]:
        """Return the tokens up to and including the one that completes the first stop string.

        If there is no stop string, all tokens are returned.
        """
        for length in range(1, len(ids)):
            first = max(0, length - self.most_tokens)
            if self.end_with(ids[first:length]):
                return ids[:length]
        return ids

    def end_with(self, ids: Sequence[int], first: int = 0) -> bool:
        """Return whether the last token completes a stop string.

        The stop string may end anywhere inside that token. Call this method after each token of a
        turn, until it returns `True`. It looks for a stop string anywhere in the text of the last
        `most_tokens` tokens, so it would also find one that an earlier token has completed.

        Args:
            ids: the tokens so far.
            first: the index of the first token of the turn; earlier tokens are ignored.
        """
        first = max(first, len(ids) - self.most_tokens)
        last_ids = list(ids[first:])
        end = str(self.tokenizer.decode(last_ids, clean_up_tokenization_spaces=False))
        return any(text in end for text in self.texts)
