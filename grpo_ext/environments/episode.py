"""An episode: turns of the model and answers of the environment, as one list of tokens with a
mask.
"""

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby, pairwise
from numbers import Real
from typing import Any, cast

from grpo_ext.environments.base import Environment, Row
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.guarded import GuardedEnvironment, protected
from grpo_ext.environments.transcript import as_read
from grpo_ext.environments.turn_tokens import Message, TurnTokens
from grpo_ext.step.records import Generation

MOST_FAILURES = 3  # failures of an environment that end its episode


class Episode:
    """One completion of several turns, token by token.

    `room` is the limit for the tokens of all turns and answers. The `prompt` of the row is a
    conversation. Without an `environment` the rules make one.
    """

    def __init__(
        self,
        rules: EpisodeRules,
        tokens: TurnTokens,
        room: int,
        row: Row,
        environment: Environment | None = None,
    ):
        self.rules = rules
        self.tokens = tokens
        self.room = room
        # TRL's environments may write the whole prompt
        prompt = row.get("prompt", [{"role": "user", "content": ""}])
        if isinstance(prompt, str) or not isinstance(prompt[-1]["content"], str):
            raise ValueError("environment needs prompts that are conversations of texts.")
        self.ids: list[int] = []  #: tokens of turns and answers so far
        #: for each token 1 if the model wrote it, 0 if the environment did
        self.mask: list[int] = []
        self.messages: list[Message] = []  #: turns and answers so far
        self.said: list[str] = []  #: text of each turn
        self.pending: deque[int] = deque()  #: tokens of an answer that the model has not read yet
        self.ended = False
        self.truncated = False  #: ended because there was no room
        self.asking = False  #: whether the environment has a turn that it has not answered
        self._first = 0  # index of the current turn's first token
        self._stopped = True  # whether the last turn has its end token
        seed = row.get("seed")  # the only source of randomness for the environment
        self.seed = zlib.crc32(repr(sorted(row.items())).encode()) if seed is None else seed
        with protected(rules.name, self.seed, "make"):
            self.environment = environment or rules.make()
        #: counts failures and calls
        self.world = GuardedEnvironment(self.environment, rules, self.seed)
        opening = self.world.reset({**row, "seed": self.seed})
        self.opening = opening  #: text of `reset`, the end of the prompt
        *others, last = prompt
        joint = self.environment.joint if last["content"] else ""
        self.prompt = (
            [*others, {**last, "content": f"{last['content']}{joint}{opening}"}]
            if opening
            else prompt
        )
        #: numbers of the state at the start and after each turn; empty without credit by turn
        self.states = [self._numbers()]

    @cached_property
    def prompt_ids(self) -> list[int]:
        return self.tokens.prompt(self.prompt, self.opening)

    def limit(self, room: int) -> None:
        """Set the limit for the tokens of all turns and answers; without any room the episode ends
        before its first turn.
        """
        self.room = max(room, 0)
        if room <= 0:
            self.messages = [{"role": "assistant", "content": ""}]
            self.ended = self.truncated = True

    @property
    def turns(self) -> int:
        """Turns of the model so far."""
        return len(self.said)

    def write(self, token: int) -> bool:
        """Append a token of the model, and return whether it ends the turn."""
        self.ids.append(token)
        self.mask.append(1)
        return token in self.tokens.ends or not self.turn_left()

    def turn_left(self) -> int:
        """Return how many tokens the current turn may still have."""
        left = self.room - len(self.ids)
        limit = self.rules.turn_tokens
        return left if limit is None else min(left, limit - (len(self.ids) - self._first))

    def read(self) -> None:
        """Append the next token of the answer."""
        self.ids.append(self.pending.popleft())
        self.mask.append(0)
        self._first = len(self.ids)

    def ask(self) -> None:
        """End the current turn and pass it to the environment, whose async code runs until
        `hear`.
        """
        ids = self.ids[self._first :]
        text = str(self.tokens.tokenizer.decode(ids, skip_special_tokens=True))
        message, broken = self.tokens.message(text, ids, self.prompt_ids + self.ids[: self._first])
        self.take_turn(message, text, ids[-1] in self.tokens.ends, broken)

    def cut_off(self) -> None:
        """End the episode with the tokens that the current turn has."""
        self.room = len(self.ids)
        if len(self.ids) > self._first:
            self.ask()
            self.hear()
        else:  # nobody reads the last answers
            while self.messages and self.messages[-1]["role"] != "assistant":
                self.messages.pop()
            self.ended = self.truncated = True

    def take_turn(
        self, message: Message, text: str, stopped: bool = True, broken: bool = False
    ) -> None:
        """Pass a whole turn of the model to the environment.

        Args:
            message: the turn with its calls.
            text: the whole text of the turn.
            stopped: whether it has its end token.
            broken: whether it has a call that cannot be read.
        """
        self.messages.append(message)
        self.said.append(text)
        self._stopped = stopped
        self.asking = True
        self.truncated = not stopped and len(self.ids) == self.room
        calls = broken or message.get("tool_calls")
        self.ended = self.truncated or bool(
            calls and self.turns == self.rules.turns
        )  # nobody would read the answer
        if not self.ended:
            self.world.ask(message, broken)

    def hear(self) -> None:
        """Wait for the answer to the last turn: the episode continues with it, or ends."""
        self.asking = False
        if self.ended:
            self.states.append(self.states[-1])
            return
        answer, over = self.world.answer()
        self.states.append(self._numbers())
        if over or self.turns == self.rules.turns or self.world.failures >= MOST_FAILURES:
            self.ended = True
            return
        try:
            tokens = self.tokens.answer(answer, self._stopped)
        except ValueError:  # some templates take one call a turn
            answer = [{**answer[0], "content": "\n".join(message["content"] for message in answer)}]
            tokens = self.tokens.answer(answer, self._stopped)
        if len(self.ids) + len(tokens) >= self.room:
            self.ended = self.truncated = True
            return
        self.messages += answer
        self.pending.extend(tokens)

    def _numbers(self) -> dict[str, float]:
        """Return the numbers of the environment's state, if each turn has its own credit."""
        state = self.world.state() if self.rules.credit == "turn" else {}
        return {
            key: float(value)
            for key, value in state.items()
            if isinstance(value, Real) and abs(cast(Any, value)) < 1e30
        }

    def gains(self, weights: Mapping[str, float]) -> list[float]:
        """Return what each turn earned: how much the numbers of the state rose in it, weighted by
        their names.
        """
        gains = []
        for before, after in pairwise(self.states):
            names = [name for name in weights if name in before and name in after]
            gains.append(sum(weights[name] * (after[name] - before[name]) for name in names))
        return gains

    def logged(
        self, weights: Mapping[str, float] | None = None, counts: bool = True
    ) -> dict[str, Any]:
        """Return `prompt`, `seed` and `messages` as `samples.jsonl` has them.

        A turn has `counted_tokens`, the number of its tokens in the loss (0 if the loss does not
        count the episode) and, with the `weights` of `gains`, what it `earned`.
        """
        lengths = [len(list(tokens)) for mask, tokens in groupby(self.mask) if mask]
        turns: deque[dict[str, Any]] = deque({"counted_tokens": n * counts} for n in lengths)
        if weights is not None:
            for turn, gain in zip(turns, self.gains(weights), strict=True):
                turn["earned"] = round(gain, 6)
        messages = []
        for message in self.messages:
            entry = {**message, "content": as_read(message)}
            if message["role"] == "assistant" and turns:
                entry.update(turns.popleft())
            messages.append(entry)
        return {"prompt": self.prompt, "seed": self.seed, "messages": messages}

    def columns(self) -> dict[str, Any]:
        """Return the columns that rewards may read beside those of the row."""
        found = {"environment": self.world.state, "turns": lambda: self.said}
        return {name: found[name]() for name in self.rules.columns}


def instances(episodes: Sequence[Episode]) -> list[Any]:
    """Return the instances of TRL's environments, one per episode; an empty list for other
    environments.
    """
    found = [getattr(episode.environment, "instance", None) for episode in episodes]
    return found if any(instance is not None for instance in found) else []


def of_episodes(generation: Generation, episodes: Sequence[Episode]) -> Generation:
    """Return a generation with the masks, messages and columns of its episodes, if it has any."""
    if not episodes:
        return generation
    columns = [episode.columns() for episode in episodes]
    return replace(
        generation,
        tool_mask=[episode.mask for episode in episodes],
        messages=[episode.messages for episode in episodes],
        cut=[episode.truncated or not episode.ended for episode in episodes],
        extra_fields={name: [row[name] for row in columns] for name in columns[0]},
    )
