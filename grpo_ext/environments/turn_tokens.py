"""The tokens between two turns of the model. Nothing that was sampled is ever decoded and tokenised again.

A template writes a conversation like this::

    ... <|im_start|>assistant / 17 <|im_end|> / <|im_start|>user / low <|im_end|> / <|im_start|>assistant / 24 <|im_end|>
                               the model's     `before`          answer `after`                         the model's
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

QUESTION, ANSWER = "a question", "an answer of the environment"
TURN = "<think>\na thought\n</think>\na turn"  # some templates take thoughts out of earlier turns


@dataclass(frozen=True)
class TurnTokens:
    """How an answer of the environment is written in tokens.

    Args:
        tokenizer: of the model.
        ends: tokens that end a turn of the model.
        end: the one that the template ends a turn with.
        before: tokens that follow it, up to the answer.
        after: tokens from the answer up to the next turn of the model.
    """

    tokenizer: PreTrainedTokenizerBase
    ends: frozenset[int]
    end: int
    before: list[int]
    after: list[int]

    def answer(self, text: str, ended: bool) -> list[int]:
        """Tokens of an answer with what stands around it; `ended`: the model's turn has its end token."""
        said = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [*([] if ended else [self.end]), *self.before, *said, *self.after]

    def text(self, ids: list[int]) -> str:
        """What the model wrote in a turn."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def turn_tokens(
    tokenizer: PreTrainedTokenizerBase, ends: Collection[int], template_options: dict[str, Any] | None = None
) -> TurnTokens:
    """Read off a chat template what it puts between two turns of the model.

    Args:
        tokenizer: with the template.
        ends: tokens that end a turn.
        template_options: `chat_template_kwargs`.

    Raises:
        ValueError: if there is no template, or a further turn changes how earlier ones are written, so that what was sampled
            would not be what a conversation says.
    """
    if not tokenizer.chat_template:
        raise ValueError("environment needs a tokenizer with a chat template, and this one has none.")

    def written(messages: list[tuple[str, str]], opens: bool = False) -> str:
        conversation = [{"role": role, "content": content} for role, content in messages]
        options = {"tokenize": False, "add_generation_prompt": opens, **(template_options or {})}
        return str(tokenizer.apply_chat_template(conversation, **options))

    asked, turn, answered = ("user", QUESTION), ("assistant", TURN), ("user", ANSWER)
    sampled = written([asked], opens=True) + TURN
    whole = written([asked, turn, answered], opens=True)
    if not (whole.startswith(sampled) and whole.count(ANSWER) == 1):
        raise ValueError(
            "environment: this chat template writes an earlier turn in another way than it was sampled (it drops thoughts, or "
            "opens a turn with more than it keeps). Give the tokenizer a chat_template that leaves earlier turns as they are, "
            "or set what it takes in chat_template_kwargs."
        )
    before, _, after = whole[len(sampled) :].partition(ANSWER)
    first, *others = tokenizer(before, add_special_tokens=False)["input_ids"] or [-1]
    if first not in ends:
        raise ValueError(
            f"environment: the chat template ends a turn with {before.split()[0] if before.split() else before!r}, which is "
            "none of the model's end tokens: set eos_token in the model's tokenizer_config.json to it."
        )
    return TurnTokens(tokenizer, frozenset(ends), first, others, tokenizer(after, add_special_tokens=False)["input_ids"])
