"""The program of a reward worker: it scores one row at a time, with a memory limit.

A pool starts it as a fresh interpreter, so that neither the training script nor torch is loaded again. It forks: the child
scores, and the parent, the keeper, ends every process that a reward has started.
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
from grpo_ext.rewards.process_state import exit_if_forked
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.scores import in_full, scores_of

PR_SET_CHILD_SUBREAPER = 36
ENDS = {signal.SIGTERM, signal.SIGCHLD}


def leave_keeper(parent: int, fd: int) -> None:
    """Fork and return in the child. This process becomes its keeper until the child ends, `parent` dies, or SIGTERM comes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    if sys.platform == "linux":  # an orphan below this process becomes its child
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    die_with(parent, signal.SIGTERM)
    keeper = os.getpid()
    if child := os.fork():
        os.close(fd)  # so that the pipe closes with the child's end
        keep(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    die_with(keeper, signal.SIGKILL)


def keep(child: int) -> NoReturn:
    """Wait for the child or for SIGTERM, then kill every process below this one."""
    code = None
    while code is None and signal.sigwait(ENDS) == signal.SIGCHLD:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                break
    this = psutil.Process()
    while children := this.children():  # the children of killed processes are in the next round
        for process in children:
            process.kill()
        psutil.wait_procs(children)
    os._exit(0 if code is None else code if code >= 0 else 128 - code)


def score(reward: Reward, row: dict[str, list[Any]]) -> tuple[float | None, str | None]:
    """Return the score of one row and its error."""
    try:
        with exit_if_forked():
            [found], errors = scores_of(reward(**row), 1)
            return found, errors.get(0)
    except MemoryError:
        return None, "MemoryError: it needed more memory than a reward worker has"
    except BaseException as error:
        return None, in_full(error)


def serve(connection: Connection) -> None:
    """Answer messages until the pipe is closed.

    A pickled message is a pickled reward with a row that it shall score, or with None, which introduces the reward. Each gets
    one answer, and so does the start. Answers are JSON: the trainer unpickles nothing from here.
    """
    rewards: dict[
        bytes, Reward | str
    ] = {}  # the error as a text if the reward cannot be built here
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
            answer = (None, reward) if isinstance(reward, str) else score(reward, row)
        connection.send_bytes(json.dumps(answer).encode())


def introduce(packed: bytes) -> Reward | str:
    """Return the reward or the error of building it. Score its first example, so that no row has to wait for imports."""
    try:
        reward = pickle.loads(packed)
    except Exception as error:
        return in_full(error)
    for example in reward.examples[:1]:
        with contextlib.suppress(Exception), exit_if_forked():
            reward(**example.given)
    return reward


def main() -> None:
    fd, parent, memory_limit = map(int, sys.argv[1:4])
    leave_keeper(parent, fd)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory_limit if hard == resource.RLIM_INFINITY else min(memory_limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(Connection(fd))


if __name__ == "__main__":
    main()
