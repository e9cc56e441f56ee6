"""What runs in a reward worker: one process, one pipe, one row at a time, a memory limit, and an end with its parent.

Started by the pool as a fresh interpreter, so that neither the training script nor torch is loaded again.
"""

import contextlib
import ctypes
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from grpo_ext.rewards.guard import as_score, checked_length, in_full
from grpo_ext.rewards.reward import Reward

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Be killed, by the kernel where it can, when the thread that started this process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def limit_memory(limit: int) -> None:
    """Let allocations beyond `limit` bytes of data fail; 0 for no limit."""
    if limit:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def warm_up(reward: Reward) -> None:
    """Import what the reward imports, by scoring its first example, so that no row's deadline pays for it."""
    for example in reward.examples[:1]:
        with contextlib.suppress(Exception):
            reward(completions=[example.completion], **{key: [value] for key, value in example.columns.items()})


def score(reward: Reward, row: dict[str, list[Any]]) -> tuple[float | None, str | None]:
    """The score of one row, or its error."""
    try:
        return as_score(checked_length(reward(**row), 1)[0]), None
    except MemoryError:
        return None, "MemoryError: it needed more memory than a reward worker has"
    except (Exception, SystemExit) as error:
        return None, in_full(error)


def serve(connection: Connection) -> None:
    """Answer until the pipe is closed.

    A message is `(key, reward, None)`, which introduces a reward under a key, or `(key, None, row)`, which asks it for a
    score. Each gets one answer, and so does having started.
    """
    rewards: dict[int, Reward | str] = {}  # a text where the reward cannot be built here
    connection.send_bytes(pickle.dumps("started"))
    while True:
        try:
            key, packed, row = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        if packed is None:
            reward = rewards[key]
            answer = (None, reward) if isinstance(reward, str) else score(reward, row)
            connection.send_bytes(pickle.dumps(answer))
        else:
            rewards[key] = introduce(packed)
            connection.send_bytes(pickle.dumps("met"))


def introduce(packed: bytes) -> Reward | str:
    """The reward, warmed up, or why there is none."""
    try:
        reward = pickle.loads(packed)
    except Exception as error:
        return in_full(error)
    warm_up(reward)
    return reward


def main() -> None:
    fd, parent, memory_limit = map(int, sys.argv[1:4])
    die_with(parent)
    limit_memory(memory_limit)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(Connection(fd))


if __name__ == "__main__":
    main()
