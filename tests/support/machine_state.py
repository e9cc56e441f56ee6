"""What a program of the reward `code` could leave behind on a machine."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from grpo_ext.rewards.code import memory_group

State = dict[str, object]


def own_state() -> State:
    """Return System V objects, mounts, and the cgroups and descriptors of this process."""
    parent = memory_group.parent_of_groups()
    own_groups = f"{memory_group.PREFIX}-{os.getpid()}-*"
    return {
        "System V": [Path("/proc/sysvipc", name).read_text() for name in ("msg", "sem", "shm")],
        "mounts": Path("/proc/self/mounts").read_text(),
        "cgroups": sorted(parent.glob(own_groups)) if parent else [],
        # without that of the listing itself
        "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
    }


def left_behind(before: State, read_state: Callable[[], State], seconds: float) -> State:
    """Return the parts of a state that differ from before, once the kernel has had time to end what
    has been killed.

    Args:
        before: what `read_state` returned earlier.
        read_state: reads the state.
        seconds: how long to wait for it to be as before.
    """
    until = time.monotonic() + seconds
    while True:
        after = read_state()
        different = {name: after[name] for name in before if after[name] != before[name]}
        if not different or time.monotonic() > until:
            return different
        time.sleep(0.01)
