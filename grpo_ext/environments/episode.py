"""An episode: turns of the model and answers of its environment, as one list of tokens with a mask."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from numbers import Real
from typing import Any, cast

from grpo_ext.environments.base import Row
from grpo_ext.environments.rules import EpisodeRules, episode_rules
from grpo_ext.environments.turn_tokens import TurnTokens, turn_tokens
from grpo_ext.rewards.deadline import TooLate, deadline
from grpo_ext.step.records import Generation

MOST_FAILURES = 3  # of an environment, which end its episode
COLUMNS = ("environment", "turns")  # of `Episode.columns`
Begin = Callable[[Row], "Episode"]  # makes the episode of a row


class Episode:
    """One completion of several turns, token by token.

    Args:
        rules: how it is played.
        tokens: how answers are written.
        room: tokens that all turns and answers may have together.
        row: of the data set; its `prompt` is a conversation.

    Attributes:
        prompt: the conversation that it begins with.
        seed: what the environment may draw from.
        ids: tokens of turns and answers so far.
        mask: for each of them 1 where the model wrote it, 0 where the environment did.
        messages: turns and answers so far, as chat messages.
        pending: tokens of an answer that the model has not read yet.
        ended: it is over.
        truncated: it ended for want of room.
        failures: times that the environment raised, or took too long.
        states: with `credit: turn` the numbers of the environment's state, at the start and after each turn.
    """

    def __init__(self, rules: EpisodeRules, tokens: TurnTokens, room: int, row: Row):
        self.rules, self.tokens, self.room = rules, tokens, room
        if isinstance(row["prompt"], str) or not isinstance(row["prompt"][-1]["content"], str):
            raise ValueError("environment needs prompts that are conversations of texts.")
        self.environment = rules.make(**rules.options)
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.messages: list[dict[str, str]] = []
        self.pending: deque[int] = deque()
        self.turns = self.failures = 0
        self.ended = self.truncated = False
        self._first = 0  # token of the present turn
        seed = row.get("seed")
        self.seed = zlib.crc32(repr(sorted(row.items())).encode()) if seed is None else seed
        opening = self._guarded(lambda: self.environment.reset({**row, "seed": self.seed}))
        *others, last = row["prompt"]
        self.prompt = [*others, {**last, "content": f"{last['content']}\n{opening}"}] if opening else row["prompt"]
        self.states = [self._numbers()]

    def write(self, token: int) -> bool:
        """Take a token of the model; whether its turn ends with it."""
        self.ids.append(token)
        self.mask.append(1)
        length = len(self.ids) - self._first
        return token in self.tokens.ends or len(self.ids) == self.room or length == self.rules.turn_tokens

    def turn_left(self) -> int:
        """Tokens that the present turn may still have."""
        left, limit = self.room - len(self.ids), self.rules.turn_tokens
        return left if limit is None else min(left, limit - (len(self.ids) - self._first))

    def read(self) -> None:
        """Take the next token of the answer."""
        self.ids.append(self.pending.popleft())
        self.mask.append(0)
        self._first = len(self.ids)

    def end_turn(self) -> None:
        """Take the turn that the last token ended: the environment answers, or the episode ends."""
        said = self.ids[self._first :]
        self.play_turn(self.tokens.text(said), said[-1] in self.tokens.ends)

    def cut_off(self) -> None:
        """End the episode with what there is of the present turn."""
        self.room = len(self.ids)
        if len(self.ids) > self._first:
            self.end_turn()
        else:  # what the environment said last has no reader
            self.messages = self.messages[:-1]
            self.ended = self.truncated = True

    def play_turn(self, text: str, stopped: bool = True) -> None:
        """Take a whole turn of the model; `stopped`: it has its end token."""
        self.messages.append({"role": "assistant", "content": text})
        self.turns += 1
        if not stopped and len(self.ids) == self.room:
            self.ended = self.truncated = True
            self.states.append(self.states[-1])
            return
        over = False

        def step() -> str:
            nonlocal over
            found = self.environment.step(text)
            if not isinstance(found, tuple) or len(found) != 2:
                raise TypeError("step returns an answer and whether the episode is over")
            answer, over = found
            return answer

        answer = self._guarded(step)
        self.states.append(self._numbers())
        if over or self.turns == self.rules.turns or self.failures >= MOST_FAILURES:
            self.ended = True
            return
        tokens = self.tokens.answer(answer, stopped)
        if len(self.ids) + len(tokens) >= self.room:
            self.ended = self.truncated = True
            return
        self.messages.append({"role": "user", "content": answer})
        self.pending.extend(tokens)

    def _guarded(self, call: Callable[[], Any]) -> str:
        """What the environment says, within its time and room; where it fails, the failure."""
        try:
            with deadline(self.rules.step_timeout):
                try:
                    said = call()
                    if not isinstance(said, str | None):
                        raise TypeError(f"it said {type(said).__name__}, not a text")
                except (Exception, SystemExit) as error:  # whatever a user's code raises; its words, too, may take long
                    said, self.failures = f"error: {type(error).__name__}: {error}", self.failures + 1
        except TooLate as error:
            said, self.failures = f"error: {error}", self.failures + 1
        return (said or "")[: self.rules.answer_characters].encode("utf-8", "replace").decode()

    def _numbers(self) -> dict[str, float]:
        """Of the state, where turns have a credit of their own."""
        found = self._state().items() if self.rules.credit == "turn" else ()
        return {key: float(value) for key, value in found if isinstance(value, Real) and abs(cast(Any, value)) < 1e30}

    def _state(self) -> dict[str, Any]:
        """The environment's; nothing where it fails."""
        found: dict[str, Any] = {}
        before = self.failures
        self._guarded(lambda: found.update(self.environment.state()))
        return found if self.failures == before else {}

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
        messages = [{**m, **(left.popleft() if m["role"] == "assistant" else {})} for m in self.messages]
        return {"prompt": self.prompt, "seed": self.seed, "messages": messages}

    def columns(self) -> dict[str, Any]:
        """What rewards may read beside the row's own columns."""
        turns = [message["content"] for message in self.messages if message["role"] == "assistant"]
        return {"environment": self._state(), "turns": turns}


def beginning(given: Any, tokenizer: Any, ends: Collection[int], args: Any) -> Begin:
    """What makes the episode of a row.

    Args:
        given: `environment` of a recipe.
        tokenizer: of the model.
        ends: tokens that end a turn.
        args: with `max_completion_length`, of a whole episode, and `chat_template_kwargs`.

    Raises:
        ValueError: for an unknown environment or option, or a chat template that does not keep turns as they were sampled.
    """
    tokens = turn_tokens(tokenizer, ends, args.chat_template_kwargs)
    return partial(Episode, episode_rules(given), tokens, args.max_completion_length)


def as_text(messages: Sequence[dict[str, str]]) -> str:
    """Return an episode as text, each answer of the environment behind a `>`."""
    return "\n".join(m["content"] if m["role"] == "assistant" else f"> {m['content']}" for m in messages)


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
        extra_fields={name: [row[name] for row in columns] for name in COLUMNS},
    )
