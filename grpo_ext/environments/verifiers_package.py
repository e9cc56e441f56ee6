"""Environments of `verifiers`: `environment: {name: verifiers:PACKAGE}`.

The package's `load_environment` returns an environment with rows, answers, tools and a rubric. The
environment's `rollout`, which calls a model through a client, is not used. Instead, the trainer's
sampler generates the turns, and the environment's `setup_state`, `env_response`, `is_completed`,
`cleanup` and rubric are called in the same order as in `rollout`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from grpo_ext.common.modules import optional_package
from grpo_ext.environments.background import result_of
from grpo_ext.environments.base import Environment, Row
from grpo_ext.environments.tools import Tool

REQUIREMENT = "verifiers>=0.3,<0.4"
ROW = "verifiers_row"  # column with a whole row of the environment's data, as JSON
SCORE_SECONDS = 60.0  # time limit of a rubric for an episode
# Methods that an environment overrides if it calls the model by itself.
DRIVING = ("rollout", "get_prompt_messages", "get_model_response", "add_model_response")
# Identifies the `errors_raised` block that the code runs in. Coroutines and tasks inherit it.
SCORING: ContextVar[object] = ContextVar("scoring", default=None)
MODEL = "none"  # the model name in an episode's state; no client ever sends it


class VerifiersEnvironment(Environment):
    """An adapter for an unmodified environment of a `verifiers` package.

    The score is the rubric's reward, that is, the weighted sum of its reward functions. The state
    contains the score and, by name, the value of each function; before the first turn, all of them
    are `None`. All episodes share the package's environment, as in `verifiers`, but each episode
    has its own state.

    Args:
        package: the package, or the id of the environment, such as `wordle` or `owner/wordle`.
        args: keyword arguments for the package's `load_environment`.

    Raises:
        ValueError: if `verifiers` is not installed in a supported version, or if the environment
            calls a model by itself, queries a judge model, scores whole groups, or has tools with
            arguments that the model does not write. Errors of `load_environment` are raised
            unchanged.
    """

    joint = ""

    def __init__(self, package: str, args: Mapping[str, Any] | None = None):
        self._env = load(package, json.dumps(args or {}, sort_keys=True))
        self._rollout: Any = None  # the state of the episode
        self._messages: list[Any] = []  # the conversation so far
        self._cut_off: str | None = None  # text of the last turn if it was cut off
        self._scored_turns = 0  # turns of the episode when it was last scored
        self._is_clean = True
        self._one_call = asyncio.Lock()  # the calls of a turn are recorded one after another

    def rows(self, split: str) -> Iterator[Row]:
        """Yield the rows of the environment's training data, or of its evaluation data.

        Each yielded row has the column `prompt`, a list of chat messages, and the column `ROW`, the
        whole row of the data as JSON.

        Args:
            split: "train" for the training data; any other value selects the evaluation data.

        Raises:
            ValueError: if there are no rows for this split, or a row cannot be written as JSON.
        """
        data = self._env.build_dataset() if split == "train" else self._env.build_eval_dataset()
        if data is None:
            remedy = "Use an environment with training data."
            if split != "train":
                remedy = "To take held-out rows from the training data, set `held_out_share: 0.1`."
            raise ValueError(f"the environment has no data for the split {split!r}. {remedy}")
        for row in data:
            try:
                text = json.dumps(row, ensure_ascii=False)
            except TypeError as error:
                raise ValueError(
                    f"a row of the environment's data is not plain data: {error}. Only "
                    "strings, numbers, lists and mappings can be used."
                ) from error
            yield {"prompt": chat_messages(row["prompt"]), ROW: text}

    def tools(self) -> Sequence[Tool]:
        return [self._recorded(tool) for tool in getattr(self._env, "tools", [])]

    async def reset(self, row: Row) -> str | None:
        if ROW not in row:
            raise ValueError(
                "the row does not come from the environment. Set `task: environment`, which "
                "takes the rows from the environment."
            )
        state = await self._env.init_state(json.loads(row[ROW]), no_client(), MODEL, {})
        before = contents(state["prompt"])
        self._is_clean = False
        self._rollout = await self._env.setup_state(state) or state
        self._messages = list(self._rollout["prompt"])
        after = contents(self._messages)
        if after[:-1] != before[:-1] or not after[-1].startswith(before[-1]):
            raise ValueError(
                "setup_state changes the prompt. It may only add text at the end of the last "
                "message, because the rows already contain the prompt."
            )
        return after[-1][len(before[-1]) :] or None

    async def step(self, text: str) -> tuple[str, bool]:
        await self._add_turn(self._types.AssistantMessage(content=text))
        if await self._env.is_completed(self._rollout):
            return "", True
        answers = await self._env.env_response(list(self._messages), self._rollout)
        self._messages += self._normalized(answers)
        over = self._rollout.get("final_env_response") is not None
        return answer_text(answers), over

    def cut_off(self, text: str) -> None:
        self._cut_off = text

    def state(self) -> dict[str, Any]:
        turns = 0
        if self._rollout is not None:
            turns = len(self._rollout["trajectory"]) + (self._cut_off is not None)
        if turns == 0:
            names = self._env.rubric._get_reward_func_names()
            return {**dict.fromkeys(names), "score": None}
        if turns != self._scored_turns:
            with errors_raised():
                result_of(self._score(), SCORE_SECONDS)
            self._scored_turns = turns
        return {**self._rollout["metrics"], "score": self._rollout["reward"]}

    async def close(self) -> None:  # type: ignore[override]
        if not self._is_clean:
            await self._clean()

    @property
    def _types(self) -> Any:
        return import_module("verifiers.types")

    def _normalized(self, messages: Any) -> list[Any]:
        normalize = import_module("verifiers.utils.message_utils").maybe_normalize_messages
        return list(normalize(messages, field_name="env_response"))

    def _recorded(self, tool: Callable[..., Any]) -> Tool:
        """Wrap a tool so that the environment runs it and the rubric can see its calls."""
        name = getattr(tool, "__name__", type(tool).__name__)

        @functools.wraps(tool)
        async def recorded(**arguments: Any) -> str:
            text = json.dumps(arguments)
            async with self._one_call:
                call_id = f"call_{len(self._messages)}"
                call = self._types.ToolCall(id=call_id, name=name, arguments=text)
                await self._add_turn(self._types.AssistantMessage(content="", tool_calls=[call]))
                answers = await self._env.env_response(list(self._messages), self._rollout)
                self._messages += self._normalized(answers)
            return answer_text(answers)

        recorded.__name__ = name
        return recorded

    async def _add_turn(self, message: Any, is_truncated: bool = False) -> None:
        """Add the model's turn to the conversation and the trajectory, as `rollout` does."""
        turn = {
            "prompt": list(self._messages),
            "completion": [message],
            "response": None,
            "tokens": None,
            "reward": None,
            "advantage": None,
            "is_truncated": is_truncated,
            "trajectory_id": self._rollout["trajectory_id"],
            "extras": {},
        }
        self._messages.append(message)
        await self._env.add_trajectory_step(self._rollout, turn)

    async def _score(self) -> None:
        if self._cut_off is not None:
            message = self._types.AssistantMessage(content=self._cut_off)
            await self._add_turn(message, is_truncated=True)
            self._cut_off = None
            self._rollout["is_truncated"] = True
        await self._clean()
        try:
            await self._env.rubric.score_rollout(self._rollout)
        finally:
            await self._env.rubric.cleanup(self._rollout)

    async def _clean(self) -> None:
        self._is_clean = True
        await self._env.cleanup(self._rollout)


@functools.cache
def load(package: str, args: str) -> Any:
    """Load the environment of a package; calls with the same arguments return the same object.

    Args:
        package: the package or the environment's id.
        args: the keyword arguments for `load_environment`, as JSON.

    Raises:
        ValueError: if `verifiers` is not installed in a supported version, or the environment
            cannot be used (see `check`).
    """
    verifiers = optional_package("verifiers", REQUIREMENT)
    if not hasattr(verifiers, "load_environment"):
        raise ValueError(
            "verifiers 0.4 is not supported: its environments run programs that send requests to "
            "verifiers' own model server. Install an earlier version: "
            f"`pip install '{REQUIREMENT}'`."
        )
    with signal_handlers_kept():
        env = verifiers.load_environment(package, **json.loads(args))
    check(package, env, verifiers)
    return env


def check(package: str, env: Any, verifiers: Any) -> None:
    """Check that an environment works with turns from the trainer's sampler.

    Args:
        package: the environment's name in messages.
        env: the environment to check.
        verifiers: the imported module `verifiers`.

    Raises:
        ValueError: if the environment calls the model by itself, queries a judge model, scores
            whole groups of completions, or has tools with arguments that the model does not write.
    """
    base = verifiers.MultiTurnEnv
    if not isinstance(env, base):
        raise ValueError(
            f"the class of {package}, {type(env).__name__}, calls the model by itself. Use an "
            "environment whose class is a subclass of verifiers' MultiTurnEnv."
        )
    for name in DRIVING:
        if getattr(type(env), name) is not getattr(base, name):
            raise ValueError(
                f"{package} overrides {name!r}, a method with which verifiers calls the model. "
                "Use an environment that does not, because the trainer's sampler generates the "
                "turns."
            )
    if isinstance(env, verifiers.StatefulToolEnv):
        raise ValueError(
            f"{package} is a StatefulToolEnv, whose tools take arguments that the model does not "
            "write. Use a plain ToolEnv."
        )
    for rubric in all_rubrics(env.rubric):
        if isinstance(rubric, verifiers.JudgeRubric):
            raise ValueError(
                f"{package} has a JudgeRubric, which queries a model through its own client. Use "
                "an environment without a JudgeRubric, and let a model grade with the reward "
                "`judge`."
            )
    if env.rubric.has_group_rewards:
        raise ValueError(
            f"{package} has a reward function for whole groups, but episodes are scored one by "
            "one. Use an environment whose reward functions score a single completion."
        )


def all_rubrics(rubric: Any) -> Iterator[Any]:
    """Yield a rubric and, recursively, all rubrics that it consists of."""
    yield rubric
    for part in getattr(rubric, "rubrics", []):
        yield from all_rubrics(part)


@functools.cache
def no_client() -> Any:
    """Return a `verifiers` client that raises `RuntimeError` instead of querying a model."""
    client = import_module("verifiers.clients").Client

    def refuse(*_: object, **__: object) -> Coroutine[Any, Any, Any]:
        raise RuntimeError(
            "the environment queries a model through a verifiers client, which grpo_ext does not "
            "provide. Use an environment that queries no model."
        )

    methods = dict.fromkeys(client.__abstractmethods__, refuse)
    return type("NoClient", (client,), methods)(None)


@contextmanager
def signal_handlers_kept() -> Iterator[None]:
    """Context manager that restores the SIGINT and SIGTERM handlers on exit.

    `verifiers` replaces them when it loads an environment.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class RaisedErrors(logging.Handler):
    """A logging handler that collects the errors logged by code in one `errors_raised` block."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if SCORING.get() is self:
            self.messages.append(record.getMessage())


@contextmanager
def errors_raised() -> Iterator[None]:
    """Context manager that raises `RuntimeError` on exit if `verifiers` logged errors in the block.

    If a reward function of a rubric raises an error, `verifiers` only logs the error and uses the
    value 0. Errors that code outside the block logs at the same time, for example in other threads,
    are ignored.
    """
    handler = RaisedErrors()
    logger = logging.getLogger("verifiers")
    logger.addHandler(handler)
    outer = SCORING.set(handler)
    try:
        yield
    finally:
        SCORING.reset(outer)
        logger.removeHandler(handler)
    if handler.messages:
        raise RuntimeError(handler.messages[0])


def chat_messages(prompt: Any) -> list[dict[str, Any]]:
    """Return a row's prompt as chat messages without null fields.

    A string becomes a user message.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    messages = []
    for message in prompt:
        messages.append({key: value for key, value in message.items() if value is not None})
    return messages


def contents(messages: Sequence[Any]) -> list[str]:
    """Return the text of each message."""
    return [answer_text([message]) for message in messages]


def answer_text(messages: Any) -> str:
    """Return the contents of an environment's messages, joined by line breaks.

    A string is returned unchanged.

    Raises:
        TypeError: if a message has content other than text, such as an image.
    """
    if isinstance(messages, str):
        return messages
    texts = []
    for message in messages:
        fields = message if isinstance(message, Mapping) else message.model_dump()
        content = fields["content"]
        if isinstance(content, list) and all(part.get("type") == "text" for part in content):
            content = "".join(part["text"] for part in content)
        if not isinstance(content, str):
            raise TypeError(
                "the environment returned a message whose content is of the type "
                f"{type(content).__name__}, but the model reads only text. Return strings."
            )
        texts.append(content)
    return "\n".join(texts)
