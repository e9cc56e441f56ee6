"""An episode: turns of the model and answers of its environment, as one list of tokens with a mask."""

import json
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

from grpo_ext.environments.base import Environment, Row
from grpo_ext.environments.guarded import GuardedEnvironment
from grpo_ext.environments.rules import EpisodeRules
from grpo_ext.environments.turn_tokens import Message, TurnTokens
from grpo_ext.step.records import Generation

MOST_FAILURES = 3  # of an environment, which end its episode


class Episode:
    """One completion of several turns, token by token.

    Args:
        rules: how it is played.
        tokens: how answers are written.
        room: tokens that all turns and answers may have together.
        row: of the data set; its `prompt` is a conversation.
        environment: to play in; `None`: a new one by the rules.

    Attributes:
        prompt: the conversation that it begins with.
        seed: what the environment may draw from.
        ids: tokens of turns and answers so far.
        mask: for each of them 1 where the model wrote it, 0 where the environment did.
        prompt_ids: its tokens.
        messages: turns and answers so far, as chat messages.
        said: what the model wrote, turn by turn.
        pending: tokens of an answer that the model has not read yet.
        ended: it is over.
        truncated: it ended for want of room.
        asking: the environment has a turn that it has not answered.
        world: the environment behind its guard, with counts of failures and calls.
        states: with `credit: turn` the numbers of the environment's state, at the start and after each turn.
    """

    def __init__(self, rules: EpisodeRules, tokens: TurnTokens, room: int, row: Row, environment: Environment | None = None):
        self.rules, self.tokens, self.room = rules, tokens, room
        prompt = row.get("prompt", [{"role": "user", "content": ""}])  # TRL's environments may say all of it
        if isinstance(prompt, str) or not isinstance(prompt[-1]["content"], str):
            raise ValueError("environment needs prompts that are conversations of texts.")
        self.environment = environment or rules.make()
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.messages: list[Message] = []
        self.said: list[str] = []
        self.pending: deque[int] = deque()
        self.world = GuardedEnvironment(self.environment, rules)
        self.ended = self.truncated = self.asking = False
        self._first = 0  # token of the current turn
        self._stopped = True  # the last turn has its end token
        seed = row.get("seed")
        self.seed = zlib.crc32(repr(sorted(row.items())).encode()) if seed is None else seed
        opening = self.world.reset({**row, "seed": self.seed})
        *others, last = prompt
        joint = self.environment.joint if last["content"] else ""
        self.prompt = [*others, {**last, "content": f"{last['content']}{joint}{opening}"}] if opening else prompt
        self.states = [self._numbers()]

    @cached_property
    def prompt_ids(self) -> list[int]:
        return self.tokens.prompt(self.prompt)

    @property
    def turns(self) -> int:
        """Turns of the model so far."""
        return len(self.said)

    def write(self, token: int) -> bool:
        """Append a token of the model, and return whether it ends the turn."""
        self.ids.append(token)
        self.mask.append(1)
        length = len(self.ids) - self._first
        return token in self.tokens.ends or len(self.ids) == self.room or length == self.rules.turn_tokens

    def turn_left(self) -> int:
        """Return how many tokens the current turn may still have."""
        left, limit = self.room - len(self.ids), self.rules.turn_tokens
        return left if limit is None else min(left, limit - (len(self.ids) - self._first))

    def read(self) -> None:
        """Append the next token of the answer."""
        self.ids.append(self.pending.popleft())
        self.mask.append(0)
        self._first = len(self.ids)

    def ask(self) -> None:
        """End the current turn and pass it to the environment, whose async code runs until `hear`."""
        ids = self.ids[self._first :]
        text = self.tokens.text(ids)
        message, broken = self.tokens.message(text, ids, self.prompt_ids + self.ids[: self._first])
        self.take_turn(message, text, ids[-1] in self.tokens.ends, broken)

    def cut_off(self) -> None:
        """End the episode with the tokens that the current turn has."""
        self.room = len(self.ids)
        if len(self.ids) > self._first:
            self.ask()
            self.hear()
        else:  # what the environment said last has no reader
            self.messages = self.messages[:-1]
            self.ended = self.truncated = True

    def take_turn(self, message: Message, text: str, stopped: bool = True, broken: bool = False) -> None:
        """Pass a whole turn of the model to the environment.

        Args:
            message: the turn, with the calls in it.
            text: all that the model wrote in it.
            stopped: it has its end token.
            broken: it has a call that cannot be read.
        """
        self.messages.append(message)
        self.said.append(text)
        self._stopped, self.asking = stopped, True
        self.truncated = not stopped and len(self.ids) == self.room
        calls = broken or message.get("tool_calls")
        self.ended = self.truncated or bool(calls and self.turns == self.rules.turns)  # nobody would read the answer
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
        """Those of the state, if each turn has a credit of its own."""
        return self.world.numbers() if self.rules.credit == "turn" else {}

    def gains(self, weights: Mapping[str, float]) -> list[float]:
        """What each turn earned: by how much the numbers of the state rose in it, weighted by their names."""
        return [
            sum(weight * (after[key] - before[key]) for key, weight in weights.items() if key in before and key in after)
            for before, after in pairwise(self.states)
        ]

    def logged(self, weights: Mapping[str, float] | None = None, counts: bool = True) -> dict[str, Any]:
        """Return `prompt`, `seed` and `messages` as `samples.jsonl` has them.

        A turn of the model has `counted_tokens`, how many of its tokens the loss counts: none unless the episode `counts`. With
        the `weights` of `gains` it also has what it `earned`.
        """
        lengths = [len(list(tokens)) for mask, tokens in groupby(self.mask) if mask]
        turns: list[dict[str, Any]] = [{"counted_tokens": length * counts} for length in lengths]
        if weights is not None:
            turns = [{**turn, "earned": round(g, 6)} for turn, g in zip(turns, self.gains(weights), strict=True)]
        left = deque(turns)
        messages = [{**m, "content": as_read(m), **(left.popleft() if m["role"] == "assistant" else {})} for m in self.messages]
        return {"prompt": self.prompt, "seed": self.seed, "messages": messages}

    def columns(self) -> dict[str, Any]:
        """Return the columns that rewards may read beside those of the row."""
        found = {"environment": self.world.state, "turns": lambda: self.said}
        return {name: found[name]() for name in self.rules.columns}


def as_text(messages: Sequence[Message]) -> str:
    """Return an episode as text, each answer of the environment behind a `>`."""
    return "\n".join(as_read(m) if m["role"] == "assistant" else f"> {as_read(m)}" for m in messages)


def as_read(message: Message) -> str:
    """Return what a message says, with calls as `name({"argument": 1})`."""
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    shown = [f"{call.get('name')}({json.dumps(call.get('arguments'), ensure_ascii=False, default=str)})" for call in calls]
    thoughts = [f"<think>\n{message['reasoning_content']}\n</think>"] if message.get("reasoning_content") else []
    return "\n".join(thoughts + [str(message["content"])] * bool(message.get("content")) + shown)


def instances(episodes: Sequence[Episode]) -> list[Any]:
    """Return the instances of TRL's environments, one per episode; an empty list for other environments."""
    found = [getattr(episode.environment, "instance", None) for episode in episodes]
    return found if any(instance is not None for instance in found) else []


def of_episodes(generation: Generation, episodes: Sequence[Episode]) -> Generation:
    """A generation with what its episodes tell; itself where a completion is one turn."""
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
