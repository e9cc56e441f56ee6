"""An episode: turns of the model and answers of its environment, as one list of tokens with a mask."""

import inspect
import json
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby, pairwise
from numbers import Real
from typing import Any, cast

from grpo_ext.environments.base import Environment, Row
from grpo_ext.environments.rules import EpisodeRules
from grpo_ext.environments.tools import Misuse, call
from grpo_ext.environments.turn_tokens import Message, TurnTokens
from grpo_ext.rewards.deadline import TooLate, deadline, waiting
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
        failures: times that the environment or a tool raised, or took too long.
        calls, failed_calls: of tools.
        states: with `credit: turn` the numbers of the environment's state, at the start and after each turn.
    """

    def __init__(self, rules: EpisodeRules, tokens: TurnTokens, room: int, row: Row, environment: Environment | None = None):
        self.rules, self.tokens, self.room = rules, tokens, room
        prompt = row.get("prompt", [{"role": "user", "content": ""}])  # TRL's environments may say all of it
        if isinstance(prompt, str) or not isinstance(prompt[-1]["content"], str):
            raise ValueError("environment needs prompts that are conversations of texts.")
        self.environment = environment or rules.make(**rules.options)
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.messages: list[Message] = []
        self.said: list[str] = []
        self.pending: deque[int] = deque()
        self.failures = self.calls = self.failed_calls = 0
        self.ended = self.truncated = False
        self._first = 0  # token of the present turn
        self._stopped, self._broken = True, False  # of the last turn
        self._begun: list[Callable[[], Any]] = []  # what the environment does with it
        seed = row.get("seed")
        self.seed = zlib.crc32(repr(sorted(row.items())).encode()) if seed is None else seed
        opening = self._guarded(lambda: self.environment.reset({**row, "seed": self.seed}))
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
        self.ask()
        self.hear()

    def ask(self) -> None:
        """Hand the turn that the last token ended to the environment; what is async in it runs while other episodes ask."""
        ids = self.ids[self._first :]
        message, broken = self.tokens.message(ids, self.prompt_ids + self.ids[: self._first])
        self.take_turn(message, self.tokens.text(ids), ids[-1] in self.tokens.ends, broken)

    def cut_off(self) -> None:
        """End the episode with what there is of the present turn."""
        self.room = len(self.ids)
        if len(self.ids) > self._first:
            self.end_turn()
        else:  # what the environment said last has no reader
            self.messages = self.messages[:-1]
            self.ended = self.truncated = True

    def take_turn(self, message: Message, text: str, stopped: bool = True, broken: bool = False) -> None:
        """Hand a whole turn of the model to the environment.

        Args:
            message: the turn, with the calls in it.
            text: all that the model wrote in it.
            stopped: it has its end token.
            broken: it has a call that cannot be read.
        """
        self.messages.append(message)
        self.said.append(text)
        self._stopped, self._broken, self._begun = stopped, broken, []
        if not stopped and len(self.ids) == self.room:
            self.truncated = True
        elif calls := message.get("tool_calls"):
            tools = self.environment.tools()
            self._begun = [self._begin(partial(call, tools, requested.get("function") or {})) for requested in calls]
        elif not broken:
            self._begun = [self._begin(partial(self.environment.step, message["content"]))]

    def hear(self) -> None:
        """Take the answer to the last turn: the episode goes on with it, or ends."""
        if self.truncated:
            self.ended = True
            self.states.append(self.states[-1])
            return
        calls, over = self.messages[-1].get("tool_calls") or [], False
        if calls:
            answer = [self._called(requested, begun) for requested, begun in zip(calls, self._begun, strict=True)]
        elif self._broken:
            answer = [self._unreadable()]
        else:
            said, over = self._stepped(self._begun[0])
            answer = [{"role": "user", "content": said}]
        self.states.append(self._numbers())
        if over or self.turns == self.rules.turns or self.failures >= MOST_FAILURES:
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

    def _begin(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Begin a user's code, and return what waits for it and gives what it returned, or raises what it raised."""
        try:
            with deadline(self.rules.step_timeout):
                found = work()
        except (Exception, SystemExit, TooLate) as error:
            return partial(_raise, error)
        return waiting(found, self.rules.step_timeout) if inspect.iscoroutine(found) else lambda: found

    def _stepped(self, begun: Callable[[], Any]) -> tuple[str, bool]:
        over = False

        def step() -> str:
            nonlocal over
            found = begun()
            if not isinstance(found, tuple) or len(found) != 2:
                raise TypeError("step returns an answer and whether the episode is over")
            answer, over = found
            return answer

        return self._guarded(step), over

    def _called(self, requested: Message, begun: Callable[[], Any]) -> Message:
        """What a tool answers to a call."""
        before, failed = self.failures, False

        def called() -> str:
            nonlocal failed
            try:
                return str(begun())
            except TimeoutError:
                raise
            except Exception as error:  # often the model's fault, and it may try again: no failure of the environment
                failed = True
                return f"error: {error}" if isinstance(error, Misuse) else f"error: {type(error).__name__}: {error}"

        self.calls += 1
        answer = self._guarded(called)
        self.failed_calls += failed or self.failures > before
        name = str((requested.get("function") or {}).get("name", ""))
        known = any(tool.__name__ == name for tool in self.tokens.tools)
        return {"role": "tool", "name": name if known else self.tokens.tools[0].__name__, "content": answer}

    def _unreadable(self) -> Message:
        self.calls += 1
        self.failed_calls += 1
        words = "error: the call could not be read; write its name and arguments as one JSON object"
        return {"role": "tool", "name": self.tokens.tools[0].__name__, "content": words}

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
        said, most = said or "", self.rules.answer_characters
        return (said if len(said) <= most else f"{said[:most]} (cut off)").encode("utf-8", "replace").decode()

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
        messages = [{**m, "content": as_read(m), **(left.popleft() if m["role"] == "assistant" else {})} for m in self.messages]
        return {"prompt": self.prompt, "seed": self.seed, "messages": messages}

    def columns(self) -> dict[str, Any]:
        """What rewards may read beside the row's own columns."""
        found = {"environment": self._state, "turns": lambda: self.said}
        return {name: found[name]() for name in self.rules.columns}


def _raise(error: BaseException) -> None:
    raise error


def as_text(messages: Sequence[Message]) -> str:
    """Return an episode as text, each answer of the environment behind a `>`."""
    return "\n".join(as_read(m) if m["role"] == "assistant" else f"> {as_read(m)}" for m in messages)


def as_read(message: Message) -> str:
    """Return what a message says, with calls as `name({"argument": 1})`."""
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    shown = [f"{call.get('name')}({json.dumps(call.get('arguments'), ensure_ascii=False, default=str)})" for call in calls]
    return "\n".join([str(message["content"])] * bool(message.get("content")) + shown)


def instances(episodes: Sequence[Episode]) -> list[Any]:
    """The instances of TRL's environments, one an episode; none of other environments."""
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
