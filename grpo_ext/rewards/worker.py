"""The program that a reward worker runs: it scores one row at a time, with a memory limit.

A pool starts the program in a fresh interpreter, so that neither the training script nor torch is
loaded again. The process then forks. The child scores rows. As soon as the child ends or the pool
stops the worker, the parent, called the keeper, kills every process that a reward has started.
"""

import contextlib
import ctypes
import json
import os
import pickle
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import psutil

from grpo_ext.common.processes import die_with
from grpo_ext.common.user_code import exit_if_forked
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.scores import in_full, scores_of

PR_SET_CHILD_SUBREAPER = 36
KEEPER_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


def leave_keeper(parent: int, fd: int) -> None:
    """Fork and return in the child; the calling process becomes its keeper and never returns.

    When the child ends, SIGTERM arrives or, on Linux, `parent` dies, the keeper kills all of its
    descendants and exits.

    Args:
        parent: the process id of the pool's process.
        fd: the child's end of the pipe to the pool.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, KEEPER_SIGNALS)
    if sys.platform == "linux":  # orphaned descendants become children of this process
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    die_with(parent, signal.SIGTERM)
    keeper = os.getpid()
    child = os.fork()
    if child:
        os.close(fd)  # so that the pipe closes when the child exits
        keep(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, KEEPER_SIGNALS)
    die_with(keeper, signal.SIGKILL)


def keep(child: int) -> NoReturn:
    """Wait until the child ends or SIGTERM arrives, then kill all descendants and exit.

    The exit code is the child's (128 plus the signal's number if a signal killed it), or 0 if the
    child was still running.
    """
    exit_code = None
    while exit_code is None and signal.sigwait(KEEPER_SIGNALS) == signal.SIGCHLD:
        exit_code = reap(child)
    this_process = psutil.Process()
    # Children of the killed processes become children of this one, for the next round.
    while children := this_process.children():
        for process in children:
            process.kill()
        psutil.wait_procs(children)
    if exit_code is None:
        exit_code = 0
    elif exit_code < 0:  # killed by a signal: use the exit code that a shell would give
        exit_code = 128 - exit_code
    os._exit(exit_code)


def reap(child: int) -> int | None:
    """Reap exited child processes; return the exit code of `child`, or `None` if it still runs."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            return None


def out_of_memory() -> str:
    """Return the error message for a row that needs more memory than this process may use."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    size = "" if limit == resource.RLIM_INFINITY else f" ({limit / 2**30:.3g} GiB)"
    return f"MemoryError: scoring this row needed more memory than a reward worker may use{size}"


def score(
    reward: Reward, row: dict[str, list[Any]], too_large: str
) -> tuple[float | None, str | None]:
    """Score one row and return (score, error).

    The error is `None` if the row was scored; both are `None` if the reward declines the row. No
    exception is raised: every error is returned as a string.

    Args:
        reward: the reward to call.
        row: the arguments of the reward, each a list with one value.
        too_large: the error message to return if memory runs out. It is built in advance, because
            building it then would need memory.
    """
    try:
        with exit_if_forked():
            scores, errors = scores_of(reward(**row), 1)
            return scores[0], errors.get(0)
    except MemoryError:
        return None, too_large
    except BaseException as error:
        return None, in_full(error)


def serve(connection: Connection) -> None:
    """Answer messages until the pipe is closed.

    A message is a pickled pair: a pickled reward, and a row to score or `None` to load the reward.
    A reward must be loaded before its first row; otherwise, the worker ends with a `KeyError`. The
    worker sends `null` when it is ready, and then one answer for each message: `[score, error]` for
    a row, or `null` once a reward is loaded. Answers are JSON, so that the trainer unpickles
    nothing from a worker.
    """
    rewards: dict[bytes, Reward | str] = {}  # a string is the error from loading the reward
    too_large = out_of_memory()
    connection.send_bytes(b"null")
    while True:
        try:
            packed, row = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        answer = None
        if row is None:
            rewards[packed] = introduce(packed)
        else:
            reward = rewards[packed]
            answer = (None, reward) if isinstance(reward, str) else score(reward, row, too_large)
        connection.send_bytes(json.dumps(answer).encode())


def introduce(packed: bytes) -> Reward | str:
    """Unpickle a reward and return it, or return the error as a string.

    The reward's first example is scored as well, so that no row has to wait for imports.
    """
    try:
        reward = pickle.loads(packed)
    except Exception as error:
        return in_full(error)
    for example in reward.examples[:1]:
        with contextlib.suppress(Exception), exit_if_forked():
            reward(**example.arguments)
    return reward


def main() -> None:
    fd, parent, memory_limit = map(int, sys.argv[1:4])
    leave_keeper(parent, fd)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    if hard_limit != resource.RLIM_INFINITY:
        memory_limit = min(memory_limit, hard_limit)
    with contextlib.suppress(ValueError):  # macOS does not allow this limit, and `check` says so
        resource.setrlimit(resource.RLIMIT_DATA, (memory_limit, memory_limit))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(Connection(fd))


if __name__ == "__main__":
    main()
