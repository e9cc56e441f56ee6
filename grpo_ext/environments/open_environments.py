"""Close environments after their episodes have been scored, and whenever a run ends.

This module keeps a list of the process's environments that are not closed yet. If the process is
killed (with SIGKILL, for example), they are never closed.
"""

from __future__ import annotations

import atexit
import inspect
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_ext.common.user_code import deadline, exit_if_forked, preserve_process_state
from grpo_ext.environments.background import start_coroutine
from grpo_ext.environments.base import Environment
from grpo_ext.rewards.guard import checksum
from grpo_ext.rewards.scores import in_full

if TYPE_CHECKING:
    from grpo_ext.environments.episode_rules import EpisodeRules


@dataclass(frozen=True)
class Opened:
    """An environment that is not closed yet."""

    environment: Environment
    rules: EpisodeRules
    #: whether it stays open after an episode, because it is used again or plays no episode
    lasting: bool


_opened: dict[int, Opened] = {}  # by the id of the environment
os.register_at_fork(after_in_child=_opened.clear)  # these environments belong to the parent


def add_open(environment: Environment, rules: EpisodeRules, lasting: bool = False) -> None:
    """Register an environment to be closed later.

    An environment that does not define `close` is not registered.

    Args:
        environment: the environment to register.
        rules: the rules of its episodes, with the time limit and the failure counts.
        lasting: whether to keep the environment open after an episode, until the run ends.
    """
    if type(environment).close is not Environment.close:
        _opened[id(environment)] = Opened(environment, rules, lasting)


def is_open(environment: Environment) -> bool:
    """Return whether an environment was registered with `add_open` and is not closed yet.

    An environment that does not define `close` is never open.
    """
    return id(environment) in _opened


def close_played(all_rules: Iterable[EpisodeRules], lasting: bool = False) -> None:
    """Close the open environments that were created with these rules.

    Call this once their episodes have been scored, because scoring reads the environments' states.

    Args:
        all_rules: the rules of the environments to close.
        lasting: whether to also close environments registered as `lasting`.
    """
    rule_ids = {id(rules) for rules in all_rules}
    played = []
    for opened in list(_opened.values()):
        if id(opened.rules) in rule_ids and (lasting or not opened.lasting):
            played.append(opened)
    close_environments(played)


def close_all(in_threads: bool = True) -> None:
    """Close all open environments of this process.

    Args:
        in_threads: whether synchronous `close` methods may run in threads. This has no effect
            unless the recipe sets `threads`.
    """
    close_environments(list(_opened.values()), in_threads)


def close_environments(all_opened: list[Opened], in_threads: bool = True) -> None:
    """Close environments that are still open; those with async code or threads close concurrently.

    Failures are counted and logged like those of other methods. Only `KeyboardInterrupt` is raised.

    Args:
        all_opened: the environments to close.
        in_threads: whether synchronous `close` methods may run in threads. This has no effect
            unless the recipe sets `threads`.
    """
    closing = []
    for opened in all_opened:
        if _opened.pop(id(opened.environment), None) is not None:
            closing.append((opened, _started(opened, in_threads)))
    for opened, result in closing:
        failures = opened.rules.failures
        try:
            result.result()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever user code raises
            details = in_full(error, opened.environment.close)
            failures.failed("close", details, (), seed="")
        else:
            failures.succeeded("close")


def _started(opened: Opened, in_threads: bool) -> Future[Any]:
    """Call `close` with a limit of `step_timeout` seconds; return a future for its outcome."""
    close: Callable[[], Any] = opened.environment.close  # it may be async
    seconds = opened.rules.step_timeout
    pool = opened.rules.thread_pool
    if pool is not None and in_threads:
        return pool.start([close], seconds)[0]
    future: Future[Any] = Future()
    seed = checksum((opened.rules.name, "close"))
    try:
        with preserve_process_state(seed), deadline(seconds), exit_if_forked():
            returned = close()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever user code raises
        future.set_exception(error)
        return future
    if not inspect.iscoroutine(returned):
        future.set_result(None)
        return future
    try:
        return start_coroutine(returned, seconds)
    except RuntimeError as error:  # since Python 3.12, no thread can start at exit
        returned.close()
        future.set_exception(error)
        return future


# no new threads can be started while the interpreter exits
atexit.register(close_all, in_threads=False)
