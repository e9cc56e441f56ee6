"""An episode: the model's turns and the environment's answers, as tokens with a mask."""

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby, pairwise
from numbers import Real
from typing import Any, Literal, cast

from grpo_ext.environments.base import Environment, Row
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.fit_answers import answer_limit, fitted_answer
from grpo_ext.environments.guarded import GuardedEnvironment, protected
from grpo_ext.environments.play_again import Exchange, Replay, Retries, play_again
from grpo_ext.environments.transcript import as_read
from grpo_ext.environments.turn_tokens import Message, TurnTokens
from grpo_ext.rewards.guard import checksum
from grpo_ext.rewards.scores import clipped

MAX_FAILURES = 3  # failures of an environment after which its episode ends
# Why an episode ended: the environment ended it, it reached the maximum number of turns, the
# environment failed too often, or no room was left for more tokens. Empty while it goes on.
End = Literal["", "environment", "turns", "failures", "room"]


class Episode:
    """A completion that is built token by token from the model's turns and the answers to them.

    The constructor starts the environment's `reset`.

    Args:
        rules: the rules of the episode.
        tokens: converts the prompt and the environment's answers to tokens.
        room: maximum number of tokens in all turns and answers together.
        row: a row of the dataset; its `prompt`, if any, is a conversation.
        environment: the environment to play; if `None`, `rules` creates a new one.
        wait: whether to wait for `reset`. If `False`, call `open` or `open_all` before anything
            else.

    Raises:
        ValueError: if the prompt is not a list of messages, or the content of the last message is
            not a string. Errors of the environment's constructor are raised unchanged.
    """

    def __init__(
        self,
        rules: EpisodeRules,
        tokens: TurnTokens,
        room: int,
        row: Row,
        environment: Environment | None = None,
        wait: bool = True,
    ):
        self.rules = rules
        self.tokens = tokens
        self.room = room
        self._logged_room = room  # `room` for the log; `cut_off` does not change it
        # the row may have no prompt, because an environment of TRL may write all of it
        prompt = row.get("prompt", [{"role": "user", "content": ""}])
        last = prompt[-1] if isinstance(prompt, list) and prompt else {}
        if not isinstance(last.get("content"), str):
            raise ValueError(
                "Episodes need chat prompts, which are lists of messages whose content is a "
                f"string; got {clipped(prompt)}. With `task: prompts`, set `user_prompt`, which "
                "converts strings to messages."
            )
        self.ids: list[int] = []  #: the tokens of turns and answers so far
        #: for each token, 1 if the model wrote it, 0 if the environment did
        self.mask: list[int] = []
        self.messages: list[Message] = []  #: turns and answers so far
        self.turn_texts: list[str] = []  #: the text of each turn
        self.pending: deque[int] = deque()  #: the tokens of an answer that are not in `ids` yet
        #: why the episode ended; empty while it goes on
        self.end: End = ""
        self.asking = False  #: whether the environment has a turn to answer
        self.cut_answers = 0  #: the number of answers that were cut off because they were too long
        self._first = 0  # index of the current turn's first token
        self._stopped = True  # whether the last turn has its end token
        self._exchanges: list[Exchange] = []  # turns that the environment has answered
        self._asked: Exchange | None = None  # the turn that the environment answers next
        self._answer: tuple[list[Message], bool] = ([], False)  # the answer to that turn
        self.seed = seed_of(row)  #: the only source of randomness for the environment
        with protected(rules.name, self.seed, "make"):
            self.environment = environment or rules.new_environment()
        #: calls the environment's code, catches its errors, and counts calls and failures
        self.world = GuardedEnvironment(self.environment, rules, self.seed)
        self.row = {**row, "seed": self.seed}  #: the row of the dataset, with the seed
        self.world.begin(self.row)
        self._retries = Retries(rules, self.row)
        self.prompt = prompt
        self.opening = ""  #: the text returned by `reset`, which is the end of the prompt
        #: the numbers in the environment's state, at the start and after each turn; the dicts are
        #: empty unless `credit: turn` is set
        self.states: list[dict[str, float]] = []
        if wait:
            self.open()

    def open(self) -> None:
        """Wait for the text returned by `reset`, and append it to the prompt."""
        open_all([self])

    def collect_opening(self) -> Replay | None:
        """Wait for `reset`; if the environment failed and is to be retried, return a replay.

        Otherwise, return `None`. In either case, call `take_opening` next, but first pass the
        replay, if any, to `play_again`.
        """
        self.opening = self.world.opening()
        return self._retries.begin(self.world, None, [])

    def take_opening(self) -> None:
        """Append the text returned by `reset` or its replay to the prompt, and record the state."""
        replay = self._replayed()
        if replay is not None:
            self.opening = replay.opening
        if self.opening:
            *earlier, last = self.prompt
            joint = self.environment.joint if last["content"] else ""
            content = f"{last['content']}{joint}{self.opening}"
            self.prompt = [*earlier, {**last, "content": content}]
        self.states.append(self._numbers())

    @cached_property
    def prompt_ids(self) -> list[int]:
        """The token ids of the prompt, including the text returned by `reset`."""
        return self.tokens.prompt(self.prompt, self.opening)

    def limit(self, room: int) -> None:
        """Set the maximum number of tokens in all turns and answers together.

        Call this before the first turn. If `room` is 0 or less, the episode ends at once, and its
        only message is an empty turn.
        """
        self.room = max(room, 0)
        self._logged_room = self.room
        if room <= 0:
            self.messages = [{"role": "assistant", "content": ""}]
            self.end = "room"

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return bool(self.end)

    @property
    def single_turn(self) -> bool:
        """Whether the row has no environment, so that the completion is a single turn."""
        return self.rules.single_turn

    @property
    def truncated(self) -> bool:
        """Whether the episode ended because no room was left for more tokens."""
        return self.end == "room"

    @property
    def turns(self) -> int:
        """The number of turns that the model has finished so far."""
        return len(self.turn_texts)

    def write(self, token: int) -> bool:
        """Append a token that the model wrote, and return whether it ends the turn.

        A turn ends with an end token, with the token that completes a stop string, or when the turn
        or the episode reaches its token limit.
        """
        self.ids.append(token)
        self.mask.append(1)
        return self.tokens.end_turn(self.ids, self._first) or not self.turn_left()

    def turn_left(self) -> int:
        """Return how many more tokens the current turn may have."""
        left = self.room - len(self.ids)
        if self.rules.turn_tokens is None:
            return left
        length = len(self.ids) - self._first  # of the current turn
        return min(left, self.rules.turn_tokens - length)

    def read(self) -> None:
        """Append the next token of the pending answer; `pending` must not be empty."""
        self.ids.append(self.pending.popleft())
        self.mask.append(0)
        self._first = len(self.ids)

    def ask(self) -> None:
        """Decode the current turn and pass it to the environment with `take_turn`.

        An environment that is async or runs in a thread answers in the background; `hear` waits for
        the answer.
        """
        turn = self.ids[self._first :]
        prefix = self.prompt_ids + self.ids[: self._first]
        text = str(self.tokens.tokenizer.decode(turn, skip_special_tokens=True))
        message, fault = self.tokens.message(text, turn, prefix)
        stopped = turn[-1] in self.tokens.ends
        self.take_turn(message, text, stopped, fault)

    def play_turn(self, ids: Sequence[int]) -> int:
        """Append the pending answer and then a turn, and wait for the environment's next answer.

        Tokens after the end of the turn, or after its limit, are dropped. If no token in `ids` ends
        the turn, the episode is cut off.

        Args:
            ids: the tokens of the turn.

        Returns:
            The number of tokens that belong to the turn.
        """
        while self.pending:
            self.read()
        for count, token in enumerate(ids, 1):
            if self.write(token):
                self.ask()
                self.hear()
                return count
        self.cut_off()
        return len(ids)

    def cut_off(self) -> None:
        """End the episode with the tokens that it has so far.

        If the current turn has tokens, they are passed to the environment's `cut_off`. If not,
        messages after the last complete turn are removed, because the model has not seen all of
        their tokens.
        """
        self.room = len(self.ids)
        if len(self.ids) > self._first and not self.pending:
            self.ask()
            self.hear()
        else:  # the model has not seen all of the last answers
            self.pending.clear()
            while self.messages and self.messages[-1]["role"] != "assistant":
                self.messages.pop()
            self.end = "room"

    def take_turn(
        self,
        message: Message,
        text: str,
        stopped: bool = True,
        fault: Message | None = None,
    ) -> None:
        """Pass the model's turn to the environment, unless the episode ends with this turn.

        If the turn reaches the episode's token limit without an end token, it is passed to the
        environment's `cut_off`, and the episode ends. The episode also ends if the environment has
        already failed (see `left_out`), or if this is the last turn allowed and it calls a tool,
        because the model would never see the result.

        Args:
            message: the turn as a chat message, with its tool calls.
            text: the whole text of the turn.
            stopped: whether the turn has its end token.
            fault: the error message in reply to an invalid call; `None` if all calls are valid.
        """
        self.messages.append(message)
        self.turn_texts.append(text)
        self._stopped = stopped
        self.asking = True
        is_last = self.turns == self.rules.turns
        has_calls = fault is not None or bool(message.get("tool_calls"))
        if not stopped and len(self.ids) == self.room:
            self.world.cut_off(message["content"])
            self.end = "room"
        elif self.left_out:
            self.end = "failures"
        elif is_last and has_calls:
            self.end = "turns"
        else:
            self._asked = Exchange(message, fault)
            self.world.ask(message, fault)

    @property
    def waits(self) -> bool:
        """Whether the last turn is being answered in the background.

        This stays `True` until `hear` is called, even if the answer is already complete.
        """
        return self.asking and not self.ended and self.world.in_background

    def hear(self) -> None:
        """Wait for the environment's answer to the last turn, then continue or end the episode.

        The episode ends if the environment ends it, if this was the last turn allowed, if the
        environment has failed (see `left_out`) or at least `MAX_FAILURES` calls have failed, or if
        there is no room for the answer and one more token. A long answer is first cut off, so that
        there is room for the next turn.
        """
        hear_all([self])

    def collect_answer(self) -> Replay | None:
        """Wait for the answer; if the environment failed and is to be retried, return a replay.

        Otherwise, return `None`. If the episode has ended, there is no answer to wait for. In every
        case, call `take_answer` next, but first pass the replay, if any, to `play_again`.
        """
        self.asking = False
        if self.ended:
            return None
        assert self._asked is not None
        self._answer = self.world.answer()
        exchanges = [*self._exchanges, self._asked]
        return self._retries.begin(self.world, self.opening, exchanges)

    def take_answer(self) -> None:
        """Add the answer to `messages` and its tokens to `pending`, or end the episode.

        The episode ends under the conditions given in `hear`. In any case, the state is recorded.
        """
        if self.ended:
            self.states.append(self.states[-1])
            return
        answer, over = self._answer
        replay = self._replayed()
        if replay is not None:
            answer = replay.answer
            over = replay.over
        assert self._asked is not None
        self._exchanges.append(replace(self._asked, answer=answer, over=over))
        self.states.append(self._numbers())
        if self.left_out:
            self.end = "failures"
        elif over:
            self.end = "environment"
        elif self.world.failures >= MAX_FAILURES:
            self.end = "failures"
        elif self.turns == self.rules.turns:
            self.end = "turns"
        if self.ended:
            return
        lengths = [len(message["content"]) for message in answer]
        is_long = max(lengths) > self.rules.answer_characters  # only if one was cut off
        limit = answer_limit(self.room - len(self.ids), self.rules.turn_tokens)
        fitted = fitted_answer(answer, self.tokens, self._stopped, limit)
        if len(self.ids) + len(fitted.ids) >= self.room:
            self.end = "room"
            return
        self.cut_answers += is_long or fitted.is_cut
        self.messages += fitted.messages
        self.pending.extend(fitted.ids)

    @property
    def left_out(self) -> bool:
        """Whether the environment failed, so that the episode is neither scored nor trained on.

        Always `False` with `on_failure: train`.
        """
        return self.world.broken and self.rules.on_failure != "train"

    @property
    def failures(self) -> int:
        """The number of calls on which the environment failed, including those before a retry."""
        return self._retries.failures + self.world.failures

    @property
    def seconds(self) -> float:
        """The number of seconds that `reset` and the answers took, including those of replays."""
        return self._retries.seconds + self.world.seconds

    def _replayed(self) -> Replay | None:
        """Switch to the environment of a successful replay, and return the replay.

        Return `None` if there was no replay, or if it failed.
        """
        replay = self._retries.end(self.world)
        if replay is not None and replay.world is not None:
            self.world = replay.world
            self.environment = replay.world.environment
        return replay

    def _numbers(self) -> dict[str, float]:
        """Return the numbers in the environment's state by name; `{}` unless `credit: turn` is set.

        NaN and numbers whose absolute value is 1e30 or more are left out. `True` counts as 1.
        """
        if self.rules.credit != "turn":
            return {}
        numbers = {}
        for key, value in self.world.state().items():
            if isinstance(value, Real) and abs(cast(Any, value)) < 1e30:
                numbers[key] = float(value)
        return numbers

    def gains(self, weights: Mapping[str, float]) -> list[float]:
        """Return the gain of each turn: the weighted sum of the changes in the state's numbers.

        A number that the state lacks before or after a turn counts as unchanged. Without
        `credit: turn`, all gains are 0.

        Args:
            weights: the weight of each number, by name.
        """
        gains = []
        for before, after in pairwise(self.states):
            gain = 0.0
            for name, weight in weights.items():
                if name in before and name in after:
                    gain += weight * (after[name] - before[name])
            gains.append(gain)
        return gains

    def logged(
        self,
        weights: Mapping[str, float] | None = None,
        counts: bool = True,
    ) -> dict[str, Any]:
        """Return the fields that the episode adds to its line in `samples.jsonl`.

        The fields are `prompt`; `seed`; `messages`; `room` (the maximum number of tokens in all
        turns and answers); `turns` (the number of turns); `end` (why the episode ended);
        `environment_time` (the property `seconds`); and `ids_checksum` (a checksum of the tokens of
        the prompt and the episode). Each turn in `messages` also has `counted_tokens`, the number
        of its tokens in the loss; `earned`, its value from `gains`; and the fields of
        `TurnTokens.as_written`, from which the turn can be replayed. For a row without an
        environment, the dict is empty.

        Args:
            weights: the weight of each number in the state, for `gains`; if `None`, `earned` is
                left out.
            counts: whether the episode counts in the loss; if not, `counted_tokens` is 0.
        """
        if self.single_turn:
            return {}
        turns: deque[dict[str, Any]] = deque()
        for ids in self.turn_ids():
            counted_tokens = len(ids) if counts else 0
            turns.append({"counted_tokens": counted_tokens, **self.tokens.as_written(ids)})
        if weights is not None:
            for turn, gain in zip(turns, self.gains(weights), strict=True):
                turn["earned"] = round(gain, 6)
        messages = []
        for message in self.messages:
            entry = {**message, "content": as_read(message)}
            if message["role"] == "assistant" and turns:
                entry.update(turns.popleft())
            messages.append(entry)
        return {
            "prompt": self.prompt,
            "seed": self.seed,
            "messages": messages,
            "room": self._logged_room,
            "turns": self.turns,
            "end": self.end,
            "environment_time": round(self.seconds, 6),
            "ids_checksum": self.ids_checksum(),
        }

    def turn_ids(self) -> list[list[int]]:
        """Return the tokens of each turn that the model wrote."""
        turns = []
        last = 0
        for is_turn, group in groupby(self.mask):
            first = last
            last += len(list(group))
            if is_turn:
                turns.append(self.ids[first:last])
        return turns

    def ids_checksum(self) -> int:
        """Return a checksum of the tokens of the prompt, the turns and the answers."""
        return checksum((self.prompt_ids, self.ids))

    def columns(self) -> dict[str, Any]:
        """Return the columns that rewards may read in addition to the columns of the row.

        They are `environment`, the environment's state (`None` for a row without an environment),
        and `turns`, the texts of the turns. Each is included only if `rules.columns` contains its
        name.
        """
        columns: dict[str, Any] = {}
        if "environment" in self.rules.columns:
            columns["environment"] = None if self.single_turn else self.world.state()
        if "turns" in self.rules.columns:
            columns["turns"] = self.turn_texts
        return columns


def open_all(episodes: Sequence[Episode]) -> None:
    """Wait for the texts returned by `reset`, and append them to the episodes' prompts.

    With `on_failure: retry`, episodes whose `reset` failed are replayed together.
    """
    replays = [episode.collect_opening() for episode in episodes]
    play_again([replay for replay in replays if replay is not None])
    for episode in episodes:
        episode.take_opening()


def hear_all(episodes: Sequence[Episode]) -> None:
    """Wait for the environments' answers to the last turns, then continue or end each episode.

    With `on_failure: retry`, episodes whose environment failed are replayed together.
    """
    replays = [episode.collect_answer() for episode in episodes]
    play_again([replay for replay in replays if replay is not None])
    for episode in episodes:
        episode.take_answer()


def seed_of(row: Row) -> object:
    """Return the seed for a row's episodes.

    It is the row's `seed` or, if that is missing or `None`, a checksum of the row.
    """
    seed = row.get("seed")
    if seed is None:
        columns = repr(sorted(row.items()))
        return zlib.crc32(columns.encode())
    return seed
