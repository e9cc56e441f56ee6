"""Call an environment's code so that the model gets an answer even if the code fails."""

import inspect
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from grpo_ext.common.user_code import TooLate, deadline, exit_if_forked, preserve_process_state
from grpo_ext.environments.background import Work, start_coroutine
from grpo_ext.environments.base import Environment, EpisodeRow, Row
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.failures import advice_on
from grpo_ext.environments.fit_answers import CUT_OFF
from grpo_ext.environments.tools import Misuse, Tool, call, checked_tools
from grpo_ext.environments.turn_tokens import Message
from grpo_ext.rewards.batch_rows import copy_containers
from grpo_ext.rewards.guard import checksum
from grpo_ext.rewards.scores import clipped, in_full


class GuardedEnvironment:
    """Calls an environment's methods and tools so that a single error does not end the run.

    If a call raises an error, hangs, or returns a result of the wrong type, the answer is an error
    message. Long answers are cut off. The constructor calls the environment's `tools`.

    Args:
        environment: the environment of one episode.
        rules: the rules of the episode, which set the limits; `rules.failures` also counts the
            failures.
        seed: the seed of the episode.
    """

    def __init__(self, environment: Environment, rules: EpisodeRules, seed: object):
        self.environment = environment
        self.rules = rules
        self.seed = seed
        # calls in which a method of the environment failed, or a method or a tool took too long;
        # the late tool calls of one turn count as one
        self.failures = 0
        self.broken = False  # whether a method has failed; a late tool does not count
        self.calls = 0  # tool calls
        self.failed_calls = 0  # tool calls that failed for any reason
        self.calls_by_tool: Counter[str] = Counter()  # tool calls by name, of existing tools only
        self.seconds = 0.0  # seconds that `reset` and the answers took
        self._asked_at = 0.0
        self._done_at: list[float] = []  # the time at which each of `_results` was done
        self._entries = 0  # how often the environment's code has been called
        self.tools: list[Tool] = []

        def list_tools() -> None:
            self.tools.extend(checked_tools(environment.tools()))

        self._answer_of("tools", None, list_tools)
        self._requests: list[Message] = []
        self._results: list[Future[Any]] = []  # the results of the user code that was started last
        #: whether this code was started in the background; it may already have finished
        self.in_background = False
        self._row: Row = {}
        self._fault: Message | None = None
        self._turn = ""

    def begin(self, row: Row) -> None:
        """Start `reset` with a copy of `row`; call `opening` to wait for the result."""
        self._row = row
        # the completions of a group share the lists in their row
        copy = EpisodeRow(copy_containers(row))
        self._start([partial(self.environment.reset, copy)])

    def opening(self) -> str:
        """Wait for `reset`, and return its text, or an error message if it failed.

        The text is empty if `reset` returned `None`.
        """
        with self.rules.stopwatch:
            self._wait()
            text, _ = self._answer_of("reset", self._row, self._results[0].result)
        return text

    def ask(self, turn: Message, fault: Message | None) -> None:
        """Pass the model's turn to the tools it calls or, if it calls none, to `step`.

        A turn with an invalid call is not passed on. Async code, and synchronous code in threads,
        runs in the background, concurrently with other environments; `answer` waits for it.

        Args:
            turn: the turn as a chat message.
            fault: the error message in reply to an invalid call; `None` if all calls are valid.
        """
        self._requests = turn.get("tool_calls") or []
        self._fault = fault
        self._turn = turn["content"]
        works: list[Work] = []
        for request in self._requests:
            function = copy_containers(request.get("function") or {})
            works.append(partial(call, self.tools, function))
        if not self._requests and fault is None:
            works.append(partial(self.environment.step, self._turn))
        self._start(works)

    def unfinished(self) -> list[Future[Any]]:
        """Return the futures of user code that is still running in the background."""
        return [result for result in self._results if not result.done()]

    def answer(self) -> tuple[list[Message], bool]:
        """Wait for the answer to the last turn; return the answer and whether the episode is over.

        The answer is a list of chat messages. After tool calls or an invalid call, the episode is
        not over, because only `step` can end an episode.
        """
        with self.rules.stopwatch:
            self._wait()
            return self._answer()

    def _wait(self) -> None:
        """Wait for the user code that was started last, and add the time it took to `seconds`."""
        wait(self._results)
        done_at = list(self._done_at)
        if len(done_at) < len(self._results):  # futures wake waiters before running callbacks
            done_at.append(time.monotonic())
        if done_at:
            self.seconds += max(done_at) - self._asked_at

    def _answer(self) -> tuple[list[Message], bool]:
        if self._fault is not None:
            self.calls += 1
            self.failed_calls += 1
            content = self._shortened(self._fault["content"])
            return [{**self._fault, "content": content}], False
        if not self._requests:
            text, over = self._step()
            return [{"role": "user", "content": text}], over
        failures_before = self.failures
        results = []
        for request, result in zip(self._requests, self._results, strict=True):
            results.append(self._tool_result(request, result))
        # a late call leaves no time for the others, so count one failure
        self.failures = min(self.failures, failures_before + 1)
        return results, False

    def cut_off(self, text: str) -> None:
        """Pass the text of a cut-off turn to the environment's `cut_off`, if it defines one."""
        if type(self.environment).cut_off is not Environment.cut_off:
            with self.rules.stopwatch:
                self._answer_of("cut_off", text, lambda: self._note_cut_off(text))

    def _note_cut_off(self, text: str) -> None:
        note: Callable[[str], object] = self.environment.cut_off
        returned = note(text)
        if inspect.iscoroutine(returned):
            returned.close()  # avoids a warning that the coroutine was never awaited
            raise TypeError("cut_off must not be async: write `def cut_off(self, text)`")

    def state(self) -> dict[str, Any]:
        """Return the environment's state, or an empty dict if its method `state` fails."""
        state: dict[str, Any] = {}

        def update_state() -> None:
            state.update(checked_state(self.environment.state()))

        with self.rules.stopwatch:
            self._answer_of("state", None, update_state)
        return state

    def _start(self, works: Sequence[Work]) -> None:
        """Start calls of user code, which share a limit of `step_timeout` seconds.

        With `threads`, the calls run in the background, one after another. Otherwise, only async
        code runs in the background; synchronous code has finished when this method returns.
        """
        self.in_background = False
        self._asked_at = time.monotonic()
        pool = self.rules.thread_pool
        if pool is not None and works:
            self._results = pool.start(works, self.rules.step_timeout)
            self.in_background = True
        else:
            end = self._asked_at + self.rules.step_timeout
            with self.rules.stopwatch:
                self._results = [self._started(work, end) for work in works]
        done_at: list[float] = []
        for result in self._results:
            result.add_done_callback(lambda _: done_at.append(time.monotonic()))
        self._done_at = done_at

    def _started(self, work: Work, end: float) -> Future[Any]:
        """Run user code, and return a future with its result or error.

        If the code is async, it is started in the background, and the future may not be done yet.
        `KeyboardInterrupt` is not caught.

        Args:
            work: a function that calls the user code.
            end: the time limit, as a value of `time.monotonic`.
        """
        seconds = max(end - time.monotonic(), 1e-3)
        future: Future[Any] = Future()
        try:
            with self._protected(), deadline(seconds), exit_if_forked():
                result = work()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            future.set_exception(error)
            return future
        if inspect.iscoroutine(result):
            self.in_background = True
            return start_coroutine(result, max(end - time.monotonic(), 0.0))
        future.set_result(result)
        return future

    def _step(self) -> tuple[str, bool]:
        over = False

        def step() -> str | None:
            nonlocal over
            answer, over = checked_step(self._results[0].result())
            return answer

        text, _ = self._answer_of("step", self._turn, step)
        return text, over

    def _tool_result(self, request: Message, result: Future[Any]) -> Message:
        function = request.get("function") or {}
        name = str(function.get("name", ""))
        answer, worked = self._answer_of(
            f"tool {name}",
            function,
            lambda: str(result.result()),
            is_tool=True,
        )
        self.calls += 1
        self.failed_calls += not worked
        if name in [tool.__name__ for tool in self.tools]:
            self.calls_by_tool[name] += 1
        return self._tool_message(name, answer)

    def _tool_message(self, name: str, content: str) -> Message:
        names = [tool.__name__ for tool in self.tools] or ["unknown"]
        if name not in names:
            name = names[0]
        return {"role": "tool", "name": name, "content": content}

    def _answer_of(
        self,
        method: str,
        arguments: object,
        work: Callable[[], Any],
        is_tool: bool = False,
    ) -> tuple[str, bool]:
        """Call `work`; return (text, `True`), or (error message, `False`) if it fails.

        `work` is stopped after `step_timeout` seconds, and the text is cut off after
        `answer_characters` characters. The outcome of the call, except for a `Misuse`, is reported
        to `rules.failures`.

        Args:
            method: the name of the environment's method, or "tool NAME".
            arguments: the arguments of the call, for the log.
            work: a function that returns the text, or `None` for an empty text.
            is_tool: whether this is a tool call. An error raised by a tool is often the model's
                fault, and the model may try again, so such an error is recorded in
                `rules.failures` without counting as a failure of the environment. A timeout, or an
                error such as `SystemExit` that is not an `Exception`, does count as a failure.
        """
        function = getattr(self.environment, method, None)
        try:
            with self._protected(), deadline(self.rules.step_timeout), exit_if_forked():
                try:
                    text = work()
                    if not isinstance(text, str | None):
                        raise TypeError(f"returned {type(text).__name__} instead of a string")
                except (KeyboardInterrupt, TooLate):
                    raise
                except BaseException as error:
                    # formatted within the deadline, since a user's error may hang
                    text = error_text(error)
                    details = in_full(error, function)
                    advice = advice_on(method, error)
                    failed = not isinstance(error, Misuse)
                    forgiven = is_tool and isinstance(error, Exception)
                else:
                    self.rules.failures.succeeded(method)
                    return self._shortened(text or ""), True
        except TooLate as error:
            # a single call may have had less time, because the calls of a turn share the limit
            text = f"error: timed out after {self.rules.step_timeout:g} s"
            details = in_full(error, function)
            advice = "Make it faster, or raise the environment's `step_timeout`."
            failed = True
            forgiven = False
        if failed and forgiven:
            self.rules.failures.tool_raised(method, details, arguments)
        elif failed:
            self.failures += 1
            self.broken = self.broken or not is_tool
            self.rules.failures.failed(method, details, arguments, self.seed, advice)
        return self._shortened(text), False

    def _protected(self) -> AbstractContextManager[None]:
        """Return a context manager that isolates the process from the next environment call.

        Random numbers in the call depend only on the environment's name, the seed of the episode
        and the number of calls so far. In the n-th call, they are therefore the same for all
        completions of a prompt.
        """
        self._entries += 1
        return protected(self.rules.name, self.seed, self._entries)

    def _shortened(self, text: str) -> str:
        limit = self.rules.answer_characters
        if len(text) > limit:
            text = text[:limit] + CUT_OFF
        return text.encode("utf-8", "replace").decode()


def protected(*key: object) -> AbstractContextManager[None]:
    """Return a context manager that isolates the process from an environment's code.

    In the block, the random number generators of Python, NumPy and torch are seeded with a checksum
    of `key`. On exit, the working directory and the states of the generators are restored. Code
    that runs in background threads is not isolated.
    """
    return preserve_process_state(checksum(key))


def checked_step(returned: object) -> tuple[str | None, bool]:
    """Check the result of `step`, and return it as (answer, whether the episode is over).

    The type of the answer is not checked.

    Raises:
        TypeError: if `returned` is not a tuple of two values, or the second value is not a Boolean,
            0 or 1.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(
            "step must return two values, the answer as a string and whether the episode is over; "
            f"it returned {clipped(returned)}"
        )
    answer, over = returned
    dtype = str(getattr(over, "dtype", ""))
    is_flag = isinstance(over, int) or dtype.endswith("bool")
    if not is_flag or over not in (0, 1):
        raise TypeError(
            "the second value that step returns, whether the episode is over, must be True or "
            f"False, but is {clipped(over)}"
        )
    return answer, bool(over)


def checked_state(returned: object) -> dict[str, Any]:
    """Return the result of `state`; raise `TypeError` if it is not a dict."""
    if inspect.iscoroutine(returned):
        returned.close()  # avoids a warning that the coroutine was never awaited
        raise TypeError("state must not be async: write `def state(self)`, which returns a dict")
    if not isinstance(returned, dict):
        raise TypeError(f"state must return a dict; it returned {clipped(returned)}")
    return returned


def error_text(error: BaseException) -> str:
    """Return a string that tells the model the type and the message of an error.

    For a `Misuse`, the type is left out. If the error's `__str__` fails, the message is left out.
    """
    try:
        if isinstance(error, Misuse):
            return f"error: {error}"
        return f"error: {type(error).__name__}: {error}"
    except Exception:  # raised by the error's `__str__`
        return f"error: {type(error).__name__}"
