"""What does `overlap: one_step` bring, and does it learn as well? The two cores as two devices, one thread for each side.

    python -m benchmarks.overlap [--quick] [--check] [--learn] [--out FILE]

Two cases of Countdown from the demo's warm-started model: as the demo trains it, and `balanced`: sampled hotter and longer, and
trained on twice, so that generation (G) and training (T) take about as long. Four ways on the same work, each in a process of
its own: plain TRL and ours with both cores for everything; ours with a sampler process and one thread a side, in turn and with
overlap. The bound of the overlap is (G + T) / max(G, T), by the seconds of the run in turn. `--learn` trains three seeds to the
end of the demo's recipe instead, with and without overlap, by both policies of the ratio, and then with `num_iterations: 2` at
twice the learning rate, where age hurts. Predicted before the first run: 1.3 and 1.8 times, and no difference in learning.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.countdown_runs import accuracy, recipe_for, train, warm_start

BOUNDS = {"share of the bound": 0.85, "balanced": 1.5}
PROCESS = {"sampler": "process", "behaviour_policy": "sampler"}
OVERLAP = {**PROCESS, "overlap": "one_step"}
CASES: dict[str, dict[str, Any]] = {
    "countdown": {},
    "balanced": {"temperature": 1.3, "max_completion_length": 144, "num_iterations": 2},
}
WAYS: dict[str, tuple[str, int, dict[str, Any]]] = {  # side, threads, settings
    "TRL, both cores": ("TRL", 2, {"preset": "trl"}),
    "ours, both cores": ("ours", 2, {}),
    "in turn": ("ours", 1, PROCESS),
    "overlap": ("ours", 1, OVERLAP),
}
LEARN: dict[str, dict[str, Any]] = {
    "in turn": {},
    "overlap, decoupled": {"sampler": "process", "overlap": "one_step"},
    "overlap, sampler": OVERLAP,
}
HARD = {"num_iterations": 2, "learning_rate": 1.6e-3}  # where age hurts


def run(way: str, case: str, model: Path, steps: int, out: str) -> dict[str, float]:
    """Train some steps and return the median seconds of a step, and of its generation if another process generates."""
    side, _, settings = WAYS[way]
    recipe = recipe_for(model, out, max_steps=steps, logging_steps=1, **CASES[case], **settings)
    generated: list[float] = []
    logs = train(side, recipe, sampled=generated)[2:]  # the first steps start processes
    updates = CASES[case].get("num_iterations", 1)
    seconds = [sum(row["step_time"] for row in logs[i : i + updates]) for i in range(0, len(logs) - updates + 1, updates)]
    return {"step": statistics.median(seconds), "generation": statistics.median(generated[2:] or [0.0])}


def in_a_process(words: list[str], threads: int) -> Any:
    """Run this program in a process with so many threads, and return what it prints last."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "benchmarks.overlap", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def learn(model: Path, seeds: int, out: Path) -> dict[str, list[float]]:
    """Return held-out greedy accuracy by way and seed."""
    found: dict[str, list[float]] = {}
    for hard in ({}, HARD):
        for way, settings in LEARN.items():
            for seed in range(seeds):
                folder = out / f"{way}-{seed}-{bool(hard)}"
                recipe = recipe_for(model, folder, seed=seed, **hard, **settings)
                train("ours", recipe)
                name = f"{way}{', twice and at twice the rate' if hard else ''}"
                found.setdefault(name, []).append(accuracy(recipe, folder)["sampled"])
                print(f"{name}, seed {seed}: {found[name][-1]:.3f}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps, and only the first case")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--learn", action="store_true", help="train to the end instead, and compare held-out accuracy")
    parser.add_argument("--model", type=Path, help="a warm-started model of the Countdown demo")
    parser.add_argument("--way", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    steps = 8 if given.quick else 24
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
        for case in () if given.learn else list(CASES)[: 1 if given.quick else 2]:
            quick = ["--quick"] if given.quick else []
            ways = {way: in_a_process(["--way", way, case, "--model", str(model), *quick], WAYS[way][1]) for way in WAYS}
            found[case] = ways
            turn = ways["in turn"]
            generation, training = turn["generation"], turn["step"] - turn["generation"]
            bound, gain = turn["step"] / max(generation, training), turn["step"] / ways["overlap"]["step"]
            print(f"{case}: G {generation:.2f} s, T {training:.2f} s, bound {bound:.2f}, overlap {gain:.2f} times")
            for way, figures in ways.items():
                print(f"  {way:<18} {figures['step']:6.2f} s a generation")
            good &= gain >= BOUNDS["share of the bound"] * bound and (case != "balanced" or gain >= BOUNDS["balanced"])
        if given.out:
            given.out.write_text(json.dumps(found, indent=2) + "\n")
    return int(given.check and not good)


if __name__ == "__main__":
    sys.exit(main())
