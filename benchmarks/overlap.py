"""How much faster is training with `overlap: one_step`, and does it learn as well?

    python -m benchmarks.overlap [--quick] [--check] [--learn] [--out FILE]

Two cores stand for two devices, with one thread for each side. There are three cases of tiny
Countdown after its warm start:

- `countdown_runs.py` as it is;
- `balanced`: fewer completions, sampled at a higher temperature and longer, so that their lengths
  are uneven and generation (G) and training (T) take about as long;
- `long tail`: sampled at temperature 2, so that a few completions are much longer than the others;
  this case also tests `partial_rollouts`.

The learning rate is too small to change what is sampled, so all runs do the same work. Four ways
are compared, which alternate in separate processes: plain TRL and ours, each with both cores for
everything; and ours with a sampler process and one thread per side, without and with overlap. If
vLLM is installed, its server replaces the sampler process in two more ways. The bound of the
overlap is (G + T) / max(G, T), with the seconds of the run without overlap. It assumes one core per
side, but vLLM's server has three processes that need more.

`--learn` instead trains three seeds for 80 steps with and without overlap, with both policies that
ratios can refer to, and then with `num_iterations: 2` at four times the learning rate, where the
age of samples matters. Predictions before the first run: 1.3 and 1.8 times as fast, no difference
in learning, and 1.4 times as fast with partial rollouts as with overlap alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from transformers import TrainerCallback

from benchmarks.countdown_runs import (
    PROCESS,
    STILL,
    accuracy,
    in_a_process,
    recipe_for,
    train,
    warm_start,
)
from benchmarks.recorded import save
from benchmarks.turns_runs import free_port
from grpo_ext.vllm.server import server_of

GENERATION = "sampling/generation_time"  # seconds, as logged
BOUNDS = {"share of the bound": 0.85, "balanced": 1.5}
OVERLAP = {**PROCESS, "overlap": "one_step"}
CASES: dict[str, dict[str, Any]] = {
    "countdown": {},
    "balanced": {
        "temperature": 1.4,
        "max_completion_length": 200,
        "per_device_train_batch_size": 192,
    },
    "long tail": {
        "temperature": 2.0,
        "max_completion_length": 448,
        "per_device_train_batch_size": 192,
    },
}
WAYS: dict[str, tuple[str, int, dict[str, Any]]] = {  # side, threads, settings
    "TRL, both cores": ("TRL", 2, {"preset": "trl"}),
    "ours, both cores": ("ours", 2, {}),
    "in turn": ("ours", 1, PROCESS),
    "overlap": ("ours", 1, OVERLAP),
}
# the way is only tried in this case
LONG = "long tail"
PARTIAL = "overlap, partial"
WAYS[PARTIAL] = "ours", 1, {**OVERLAP, "partial_rollouts": 56}
if find_spec("vllm"):
    SERVER = {
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_server_host": "127.0.0.1",
        "vllm_max_model_length": 256,
    }
    WAYS["vLLM, in turn"] = ("ours", 1, {**SERVER, "behaviour_policy": "sampler"})
    WAYS["vLLM, overlap"] = (
        "ours",
        1,
        {**SERVER, "behaviour_policy": "sampler", "overlap": "one_step"},
    )
PAIRS = ("in turn", "overlap"), ("vLLM, in turn", "vLLM, overlap"), ("in turn", PARTIAL)
LEARN: dict[str, dict[str, Any]] = {
    "in turn": {},
    "overlap, decoupled": {"sampler": "process", "overlap": "one_step"},
    "overlap, sampler": OVERLAP,
    "overlap, sampler, partial": {**OVERLAP, "partial_rollouts": 24},
}
HARD = {"num_iterations": 2, "learning_rate": 1.6e-3}  # where age hurts


class Cpu(TrainerCallback):
    """Records the CPU seconds of this process and its descendants at the end of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_log(self, *_: Any, **__: Any) -> None:
        own = psutil.Process()
        times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
        self.seconds.append(sum(t.user + t.system for t in times))


def run(way: str, case: str, model: Path, steps: int, out: str) -> dict[str, list[float]]:
    """Train for some steps, and return the seconds of each generation.

    These are the seconds with training, those of generating alone if they are logged, and CPU
    seconds.
    """
    side, _, settings = WAYS[way]
    serves = "use_vllm" in settings
    ports = {"vllm_server_port": free_port(), "vllm_group_port": free_port()} if serves else {}
    recipe = recipe_for(
        model, out, max_steps=steps, logging_steps=1, **STILL, **CASES[case], **settings, **ports
    )
    with server_of(recipe).running(seconds=240, restarts=0) if serves else nullcontext():
        logs = train(side, recipe, [cpu := Cpu()])[2:]  # the first steps start processes
    cpus = [after - before for before, after in pairwise(cpu.seconds[1 : len(logs) + 2])]
    generation = [row[GENERATION] for row in logs if GENERATION in row]
    return {"step": [row["step_time"] for row in logs], "generation": generation, "cpu": cpus}


def measured(case: str, model: Path, quick: bool) -> dict[str, dict[str, float]]:
    """Return the median seconds and the CPUs in use, by way.

    The ways alternate, because the speed of a machine varies.
    """
    ways = (
        ("in turn", "overlap", PARTIAL) if case == LONG else [way for way in WAYS if way != PARTIAL]
    )
    seconds: dict[str, dict[str, list[float]]] = {
        way: {"step": [], "generation": [], "cpu": []} for way in ways
    }
    for _ in range(1 if quick else 3):
        for way, threads in ((way, WAYS[way][1]) for way in ways):
            words = ["--way", way, case, "--model", str(model), *["--quick"] * quick]
            for name, values in in_a_process("benchmarks.overlap", words, threads).items():
                seconds[way][name] += values
    found = {
        way: {name: statistics.median(values or [0.0]) for name, values in s.items()}
        for way, s in seconds.items()
    }
    for way, s in seconds.items():
        found[way]["cores"] = sum(s["cpu"]) / sum(s["step"])
    return found


def shown(case: str, ways: dict[str, dict[str, float]]) -> bool:
    """Print the figures of a case, and return whether they are within the bounds."""
    good = True
    for turn, ahead in (pair for pair in PAIRS if pair[1] in ways):
        generation = ways[turn]["generation"]
        step = ways[turn]["step"]
        bound = step / max(generation, step - generation)
        gain = step / ways[ahead]["step"]
        times = f"bound {bound:.2f}, reached {gain:.2f} times ({gain / bound:.0%})"
        print(f"{case}, {ahead}: G {generation:.2f} s, T {step - generation:.2f} s, {times}")
        enough = gain >= BOUNDS["share of the bound"] * bound and (
            case != "balanced" or gain >= BOUNDS["balanced"]
        )
        good &= enough or case == LONG
    for way, figures in ways.items():
        print(
            f"  {way:<18} {figures['step']:6.2f} s a "
            f"generation, {figures['cores']:.2f} cores in use"
        )
    return good


def learn(model: Path, seeds: int, out: Path) -> dict[str, list[float]]:
    """Return the share of held-out problems that sampled completions solve, by way and seed."""
    found: dict[str, list[float]] = {}
    for hard in ({}, HARD):
        for way, settings in LEARN.items():
            for seed in range(seeds):
                folder = out / f"{way}-{seed}-{bool(hard)}"
                recipe = recipe_for(model, folder, seed=seed, **hard, **settings)
                train("ours", recipe)
                name = f"{way}{', twice and at four times the rate' if hard else ''}"
                found.setdefault(name, []).append(accuracy(recipe, folder)["sampled"])
                print(f"{name}, seed {seed}: {found[name][-1]:.3f}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps, and only the first case")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument(
        "--learn",
        action="store_true",
        help="train to the end instead, and compare held-out accuracy",
    )
    parser.add_argument("--model", type=Path, help="a model that `countdown_runs.warm_start` made")
    parser.add_argument("--way", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    steps = 8 if given.quick else 18
    with tempfile.TemporaryDirectory() as folder:
        if given.way:
            way, case = given.way
            print(json.dumps(run(way, case, given.model, steps, folder)))
            return 0
        model = given.model or warm_start(Path(folder))
        found: dict[str, Any] = {}
        good = True
        if given.learn:
            found = learn(model, 1 if given.quick else 3, Path(folder))
        for case in () if given.learn else list(CASES)[: 1 if given.quick else None]:
            found[case] = measured(case, model, given.quick)
            good &= shown(case, found[case])
        if given.out:
            save(given.out, found)
    return int(given.check and not good)


if __name__ == "__main__":
    sys.exit(main())
