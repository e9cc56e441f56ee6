"""Runs with every option that keeps state, which a test kills and restarts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.fault_runs import (
    KillAt,
    make,
)
from tests.support.forked_samplers import use_forked_samplers

PROCESS = {"overlap": "one_step", "sampler": "process"}

WHOLE = {
    **PROCESS,
    "group_filter": "off",
    "max_staleness": 0,
    "num_iterations": 1,
    "top_k": 9,
    "num_train_epochs": 4,
}

# beside what `fault_runs.make` sets: refill with carried groups, the adaptive curriculum, two
# passes, evaluation by decoding
SETTINGS: dict[str, dict[str, Any]] = {
    "turns": {},
    "overlap": PROCESS,
    "each-step": {  # a generation for each step, and the sampler process also evaluates
        **PROCESS,
        **{
            "behaviour_policy": "sampler",
            "num_iterations": 1,
            "steps_per_generation": 2,
            "eval_temperature": None,
        },
        "num_train_epochs": 4,
    },
    "whole-groups": WHOLE,
    "partial": {**WHOLE, "partial_rollouts": 2},
}


def train(
    model: Path,
    out: Path,
    kill: KillAt | None = None,
    in_save: tuple[int, float] | None = None,
    strikes: dict[int, float] | None = None,
    **settings: Any,
) -> None:
    """The work of a process: continue from the newest complete checkpoint, and be killed on the way
    if asked.

    Args:
        in_save: a step, and the seconds that its checkpoint is being written before the kill.
        strikes: on the sampler process, by the number of its request, and the seconds after that.
    """
    use_forked_samplers()
    trainer = make(model, out, **settings)
    if kill is not None:
        trainer.add_callback(kill)
    if in_save is not None:
        step, delay = in_save
        checkpoints = trainer.parts.checkpoints
        write_whole = checkpoints.write

        def dies(folder: Path, write: Callable[[], None]) -> None:
            if trainer.state.global_step == step:
                threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
            write_whole(folder, write)

        # the kill is to strike while it writes
        checkpoints.write = dies  # type: ignore[method-assign]
    if strikes is not None:
        kill_sampler(trainer, strikes)
    trainer.train(True)


def kill_sampler(trainer: Any, moments: dict[int, float]) -> None:
    """Kill the sampler process so many seconds after these requests, of 1, and print each kill."""
    part = trainer.parts.sampler
    submitted = trainer.parts.sampler.submit
    requests = 0

    def strike() -> None:
        process = part._process
        if process is not None and process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            print("\nsampler killed", flush=True)

    def submit(request: Any) -> None:
        nonlocal requests
        requests += 1
        if requests in moments:
            threading.Timer(moments[requests], strike).start()
        submitted(request)

    part.submit = submit
