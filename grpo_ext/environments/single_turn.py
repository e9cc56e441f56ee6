"""Episodes for rows without an environment, in a run in which other rows have one.

Such an episode has a single turn, which is not answered. The prompt, tokens and rewards are the
same as in a run without environments.
"""

from collections.abc import Collection
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_ext.common.stop_strings import StopStrings, stop_strings_of
from grpo_ext.environments.base import Environment
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.turn_tokens import TurnTokens


class SingleTurn(Environment):
    """An environment that ends the episode after the first turn."""

    def step(self, text: str) -> tuple[str, bool]:
        """End the episode."""
        return "", True


class SingleTurnTokens(TurnTokens):
    """Converts prompts to tokens for episodes of a single turn, which is not answered.

    Unlike `TurnTokens`, it does not check how the chat template renders earlier turns.

    Args:
        tokenizer: the model's tokenizer.
        ends: the ids of the tokens that end the turn.
        args: the training arguments; `chat_template_kwargs` are passed to the template, and
            `generation_kwargs` may contain stop strings.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ends: Collection[int], args: Any):
        self.tokenizer = tokenizer
        self.ends = frozenset(ends)
        self.end = min(self.ends)
        if tokenizer.eos_token_id in self.ends:
            self.end = int(tokenizer.eos_token_id)
        stop_strings = stop_strings_of(args.generation_kwargs)
        if stop_strings:
            self.stops = StopStrings(tokenizer, stop_strings)
        self.tools = []
        self._reader = None
        self._options = dict(args.chat_template_kwargs or {})


def single_turn_rules() -> EpisodeRules:
    """Return the rules for episodes of a single turn."""
    return EpisodeRules(SingleTurn, turns=1, name="single turn", single_turn=True)
