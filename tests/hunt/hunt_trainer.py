"""Whatever settings meet in the trainer, the gradient that the optimizer gets is that of the
formula, or they are refused.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from transformers import AutoModelForCausalLM

from tests.support.fault_runs import quiet, start, wait
from tests.support.hunting import HALF, held, hunt
from tests.support.options import CUT, VALUES, cuts, drawn
from tests.support.scripted_run import build_start, joined, run
from tests.support.trainer_oracle import Oracle, Undecided, check_order

BOUND = 2e-5  # of the sum of the norms of the completions' gradients, in float32
Gradient = dict[str, torch.Tensor]  # by the name of the parameter
MET: set[tuple[str, str]] = set()  # pairs of options in the settings that were compared
LIMIT = 120.0  # seconds that two ranks may take


def gradients_are_the_formulas(settings: dict[str, Any]) -> None:
    """Train for three steps, and compare the gradient of each with the oracle's."""
    if compare(record_of(settings)):
        MET.update(combinations(sorted(settings.keys() & VALUES.keys()), 2))


def record_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what a run of these settings has recorded, or `refused`."""
    ranks = settings["ranks"]
    if ranks > 1:
        prepare()
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as name:
        out = Path(name)
        if ranks == 1:
            with contextlib.redirect_stdout(io.StringIO()):
                run(start_model(), out, settings)
        else:
            pids = start(ranks, out, lambda: in_rank(out, settings))
            codes = wait(pids, kill_after=LIMIT)
            said = (out / "rank-0.log").read_text(errors="replace")
            assert not any(codes), f"{last_error(said)}\nexit codes {codes}\n{said[-3000:]}"
        return joined(out, ranks)


def last_error(said: str) -> str:
    """Return the last line of an error in a log."""
    lines = [line for line in said.splitlines() if "Error" in line and not line.startswith(" ")]
    return lines[-1] if lines else "a rank ended"


def in_rank(out: Path, settings: dict[str, Any]) -> None:
    """What a rank does: forget that the process that it is a fork of was alone, and run."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    run(start_model(), out, settings)


def compare(record: dict[str, Any]) -> int:
    """Compare the order of the prompts and the gradients of a run with the oracle's.

    Return the number of steps that were compared.

    A step in which rounding decides, or whose gradient overflows, is left out, with all after it.
    """
    if "refused" in record:
        return 0
    check_order(record)
    oracle = oracle_of(record)
    for number, step in enumerate(record["steps"]):
        try:
            wanted, norms = oracle.gradient(number)
            if not math.isfinite(norms):
                return number
            difference = apart(step["gradient"], wanted)
            if difference > BOUND * norms + 1e-9:
                in_float32 = rounding(record, number)
                if not math.isfinite(in_float32):  # the formulas overflow there, as the run does
                    return number
                difference -= 10 * in_float32
        except Undecided:
            return number
        assert difference <= BOUND * norms + 1e-9, (
            f"step {number}: {difference:.1e} apart, where the norms of the completions' gradients "
            f"sum to {norms:.1e}"
        )
    return len(record["steps"])


def apart(gradient: Gradient, wanted: Gradient) -> float:
    """Return the norm of the difference; a parameter without a gradient has 0."""
    square = 0.0
    for name, exact in wanted.items():
        here = gradient.get(name, torch.zeros(()))
        square += float((here.double() - exact).pow(2).sum())
    return square**0.5


def oracle_of(record: dict[str, Any], dtype: torch.dtype = torch.float64) -> Oracle:
    return Oracle(AutoModelForCausalLM.from_pretrained(start_model(), dtype=dtype), record)


def rounding(record: dict[str, Any], number: int) -> float:
    """Return how far the same formulas in float32 are from those in float64."""
    exact = oracle_of(record)
    rounded = oracle_of(record, torch.float32)
    for step in range(number + 1):
        wanted = exact.gradient(step)[0]
        got = rounded.gradient(step)[0]
    return apart(got, wanted)


def start_model() -> Path:
    return held("scripted", build_start)


def smaller(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings on one rank, and without one of their options."""
    if settings["ranks"] > 1:
        yield {**settings, "ranks": 1}
    for option in settings:
        if option in VALUES and option not in CUT:
            yield {name: value for name, value in settings.items() if name != option}
    for name, value in (("rewards", "one"), ("num_iterations", 1), ("seed", 1)):
        if settings[name] != value:
            yield {**settings, name: value}


@functools.cache
def prepare() -> None:
    """Make the model, and run once, so that forks have all modules."""
    quiet()
    torch.set_num_threads(1)
    record_of({**cuts()[0], "rewards": "one", "seed": 1})


def test_trainer():
    try:
        hunt(gradients_are_the_formulas, prepare, HALF, smaller, settings=drawn())
    finally:
        print(f"{len(MET)} pairs of {len(VALUES)} options met in a step that was compared")
