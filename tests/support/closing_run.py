"""A run in a process of its own, for `tests/trainer/test_closed_environments.py`.

Arguments: the model's folder, the output folder, the name of the environment's class, and what
happens: `ends`, `signal` (SIGTERM in the second step) or `reward` (a reward that always raises).
"""

from __future__ import annotations

import os
import signal
import sys

from transformers import TrainerCallback

from tests.support.episode_run import make


class Signal(TrainerCallback):
    """Sends SIGTERM to this process in the second step."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def broken_reward(completions, **columns):
    """Raise."""
    raise RuntimeError("no score")


def main() -> None:
    folder, out, name, case = sys.argv[1:]
    make(
        folder,
        out,
        [Signal()] if case == "signal" else None,
        rewards=[broken_reward] if case == "reward" else ["environment"],
        environment={"name": f"tests.support.closing_world:{name}", "turn_tokens": 4},
        max_steps=25 if case == "ends" else 3,
    ).train()


if __name__ == "__main__":
    main()
