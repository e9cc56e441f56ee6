"""SIGTERM in a command: it passes through guards, and changes nothing for other processes."""

from __future__ import annotations

import os
import signal
import time

import pytest

from grpo_ext.common.termination import Terminated, terminable, until_interrupted
from grpo_ext.rewards.guard import Guard


def terminated(completions, **columns):
    """A reward that sends SIGTERM to its process."""
    os.kill(os.getpid(), signal.SIGTERM)
    return [0.0] * len(completions)


def test_it_passes_through_the_guard_of_a_reward():
    with pytest.raises(Terminated), terminable(), until_interrupted():
        Guard(terminated)(completions=["a", "b"])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_it_ends_a_forked_process_as_usual():
    """Python drops a signal that comes while a process is being forked, so the child says when it
    is ready.
    """
    is_ready, ready = os.pipe()
    with terminable():
        child = os.fork()
        if child == 0:
            os.write(ready, b"1")
            while True:  # not `pause`, which would miss a signal that came just before it
                time.sleep(0.01)
        os.read(is_ready, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
    os.close(ready)
    os.close(is_ready)


def test_a_handler_of_the_program_is_kept():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with terminable():
            Guard(terminated)(completions=["a"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]
