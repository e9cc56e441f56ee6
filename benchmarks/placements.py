"""Does the simulator behind `grpo-ext plan --gpus` say how long a step takes? The two cores as two devices, one thread a side.

    python -m benchmarks.placements [--quick] [--check] [--published] [--model FOLDER] [--out FILE]

Speeds are fitted to three settings of Countdown that are not among those predicted: seconds of a decoding step, of a row in it,
of judging a completion, of training on a token, of a micro-batch. Both sides share the memory of one machine: how much slower
each of them is while the other works, and how long the sampler stands still between generations, is measured, in a setting in
which that side never waits. Ten settings, in turn and with overlap, are predicted from the lengths of their completions, and
run. A machine that others use too can be a third slower a minute later. So a batch of settings and the runs that give the
speeds are alive at the same time, but stopped, and take turns: one works for a few generations, then the next. Of a run's turns
the median counts. A run takes 0.7 GB. `--published` simulates published settings instead, from what was published about their
runs without overlap, and prints the table of docs/overlap.md; it runs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
from transformers import TrainerCallback

from benchmarks.countdown_runs import PROCESS, STILL, recipe_for, train, warm_start
from benchmarks.placements_published import table
from grpo_ext.preflight.placements import Placement, Speeds, Workload, simulate
from grpo_ext.preflight.speeds import GENERATION, fitted

BOUND, OF_TEN = 0.10, 9
ENDED = "a generation has ended"
STARTING, TURN, TURNS, UNSETTLED = (
    2,
    5,
    4,
    2,
)  # generations of a run at first and a turn; turns; generations of each left out
AT_ONCE = 5  # settings of a batch
CALIBRATION: dict[str, dict[str, Any]] = {
    "short": {"max_completion_length": 32, "per_device_train_batch_size": 384},
    "long": {"max_completion_length": 160, "temperature": 1.5, "per_device_train_batch_size": 64},
    "four iterations": {"num_iterations": 4, "per_device_train_batch_size": 192},
}
SHARED: dict[
    str, dict[str, Any]
] = {  # with overlap the trainer never waits in the first, the sampler never in the second
    "long training": {"num_iterations": 3, "per_device_train_batch_size": 192},
    "long generation": {
        "temperature": 1.5,
        "max_completion_length": 180,
        "per_device_train_batch_size": 96,
    },
}
CASES: dict[str, dict[str, Any]] = {
    "as the demo": {},
    "half the generation": {"per_device_train_batch_size": 128},
    "twice the generation": {"gradient_accumulation_steps": 2},
    "16 completions a prompt": {"num_generations": 16},
    "limit 48": {"max_completion_length": 48},
    "limit 144, T 1.3": {"max_completion_length": 144, "temperature": 1.3},
    "limit 200, T 1.4, 96 rows": {
        "max_completion_length": 200,
        "temperature": 1.4,
        "per_device_train_batch_size": 96,
    },
    "two iterations": {"num_iterations": 2},
    "two iterations, T 1.3, limit 144": {
        "num_iterations": 2,
        "temperature": 1.3,
        "max_completion_length": 144,
    },
    "three iterations, half": {"num_iterations": 3, "per_device_train_batch_size": 128},
}


@dataclass
class Seen(TrainerCallback):
    """Watches a run's optimizer steps and completions."""

    passes: int  # optimizer steps of a generation
    ends: list[float] = field(default_factory=list)  # of optimizer steps
    samples: dict[int, list[tuple[int, bool]]] = field(
        default_factory=dict
    )  # by step: length, and whether it is trained on

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.monotonic())
        if len(self.ends) % self.passes == 0:
            print(ENDED, flush=True)

    def wants(self, step: int, group: int) -> bool:
        return True

    def on_samples(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.samples.setdefault(row["step"], []).append((row["length"], bool(row["advantage"])))


@dataclass
class Made:
    """One generation of a run."""

    whole: float  # seconds from its end to the end of the one before
    generation: float
    lengths: list[int]
    trained: int  # tokens that run through the model; completions without an advantage cost nothing
    updates: int  # micro-batches
    waited: float  # seconds that the trainer waited for the sampler


Runs = tuple[list[Made], list[Made]]  # in turn, and with overlap


def run(model: Path, settings: dict[str, Any], turns: int) -> list[Made]:
    """Train, and return the generations of the one or two turns whose time is the median, each without its first ones."""
    passes = settings.get("num_iterations", 1)
    steps, seen = (STARTING + turns * TURN) * passes, Seen(passes)
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_for(
            model, folder, max_steps=steps, logging_steps=1, **PROCESS, **STILL, **settings
        )
        rows = [row for row in train("ours", recipe, callbacks=[seen]) if GENERATION in row]
    ends, samples = (
        seen.ends[passes - 1 :: passes],
        [seen.samples[step] for step in sorted(seen.samples)],
    )
    made = []
    for i in range(STARTING, len(ends)):
        lengths, trained = [n for n, _ in samples[i]], sum(n for n, live in samples[i] if live)
        updates = passes * settings.get("gradient_accumulation_steps", 1)
        times = ends[i] - ends[i - 1], rows[i][GENERATION]
        made.append(
            Made(*times, lengths, passes * trained, updates, rows[i].get("time/waiting", 0.0))
        )
    by_turn = [made[i + UNSETTLED : i + TURN] for i in range(0, len(made), TURN)]
    by_turn.sort(key=lambda turn: sum(one.whole for one in turn))
    return [
        one for turn in by_turn[(len(by_turn) - 1) // 2 : len(by_turn) // 2 + 1] for one in turn
    ]


class Side:
    """A run in a process of its own, with one thread a side, that stands still except in its turns."""

    def __init__(self, model: Path, settings: dict[str, Any], turns: int, errors: IO[str]):
        words = [
            "-m",
            "benchmarks.placements",
            "--model",
            str(model),
            "--here",
            json.dumps([settings, turns]),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
        self.errors = errors
        self.process = subprocess.Popen([sys.executable, *words], env=environment, **streams)
        self.take(STARTING)

    def take(self, generations: int) -> None:
        """Let it make so many generations."""
        assert self.process.stdout is not None
        self._all("resume")
        for line in self.process.stdout:
            generations -= line.strip() == ENDED
            if not generations:
                return self._all("suspend")
        raise self._ended_early()

    def result(self) -> list[Made]:
        """Let it end, and return its generations."""
        self._all("resume")
        printed = self.process.communicate()[0]
        if self.process.returncode:
            raise self._ended_early()
        return [Made(**one) for one in json.loads(printed.splitlines()[-1])]

    def _ended_early(self) -> RuntimeError:
        code = self.process.wait()
        self.errors.seek(0)
        return RuntimeError(
            f"A run ended early, with exit code {code}:\n{self.errors.read()[-2000:]}"
        )

    def _all(self, do: str) -> None:
        """Stop or continue the trainer and its sampler process."""
        trainer = psutil.Process(self.process.pid)
        for process in (trainer, *trainer.children(recursive=True)):
            getattr(process, do)()


def calibrated(made: list[Made]) -> Speeds:
    """Return the speeds that fit the generations of runs in turn; `reward` is that of one completion."""
    step, row = fitted(
        [max(m.lengths) for m in made], [sum(m.lengths) for m in made], [m.generation for m in made]
    )
    table = np.array([[len(m.lengths), m.trained, m.updates] for m in made], dtype=float)
    reward, token, update = nonnegative(table, np.array([m.whole - m.generation for m in made]))
    return Speeds(step, row, token, update, reward, slots=1 << 30)


def nonnegative(table: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Return the least squares solution without negative numbers: the best of those that leave some columns out."""
    best, least = np.zeros(table.shape[1]), np.inf
    for used in product([False, True], repeat=table.shape[1]):
        found = np.zeros(table.shape[1])
        found[list(used)] = np.linalg.lstsq(table[:, used], seconds)[0]
        rest = float(((table @ found - seconds) ** 2).sum())
        if found.min() >= 0 and rest < least:
            best, least = found, rest
    return [float(x) for x in best]


def simulated(made: list[Made], speeds: Speeds) -> dict[str, Placement]:
    """Return the two placements of the generation whose time in turn is the median."""
    found = []
    for one in made:
        own = replace(
            speeds,
            token=speeds.token * one.trained / sum(one.lengths),
            reward=speeds.reward * len(one.lengths),
        )
        found.append(
            {x.name: x for x in simulate(Workload(one.lengths, updates=one.updates), own, 2)}
        )
    return sorted(found, key=lambda x: x["in turn"].whole)[len(found) // 2]


@dataclass(frozen=True)
class Beside:
    """What the two sides cost each other while both work."""

    generation: float  # how many times as long it takes
    training: float
    handover: float  # seconds from the end of a generation to the beginning of the next, in which the sampler stands still


def overlapped(placement: Placement, beside: Beside) -> float:
    """Return the seconds of a placement with overlap.

    The side that ends first works beside the other all the time; what the other has not done by then it does alone.
    """
    generation = placement.generation * beside.generation + beside.handover, beside.generation
    training = (placement.training + placement.other) * beside.training, beside.training
    first, last = sorted((generation, training))
    return first[0] + (last[0] - first[0]) / last[1]


def mean_of(made: list[Made], name: str) -> float:
    """Return a mean: with overlap a generation that begins late is followed by one that ends early."""
    return statistics.mean(getattr(one, name) for one in made)


def costs(long_training: Runs, long_generation: Runs) -> Beside:
    """Return what the sides cost each other, by runs in which the trainer never waits, and in which the sampler never does."""
    (turn, over), (turn_too, over_too) = long_training, long_generation
    alone = mean_of(turn_too, "whole") - mean_of(turn_too, "generation")
    whole = mean_of(over_too, "whole")
    training, handover = (
        (whole - mean_of(over_too, "waited")) / alone,
        whole - mean_of(over_too, "generation"),
    )
    return Beside(mean_of(over, "generation") / mean_of(turn, "generation"), training, handover)


def all_runs(
    model: Path, cases: dict[str, dict[str, Any]], turns: int
) -> tuple[dict[str, list[Made]], dict[str, Runs]]:
    """Return the runs of `CALIBRATION`, and those of `SHARED` and `cases` in turn and with overlap, made in alternation."""
    both = {**SHARED, **cases}
    settings = [
        *CALIBRATION.values(),
        *both.values(),
        *({**case, "overlap": "one_step"} for case in both.values()),
    ]
    with ExitStack() as stack:
        sides = []
        for one in settings:
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            sides.append(side := Side(model, one, turns, errors))
            stack.callback(side.process.kill)
        for turn in range(turns - 1):
            print(f"turn {turn + 1} of {turns}", file=sys.stderr, flush=True)
            for side in sides:
                side.take(TURN)
        made = [side.result() for side in sides]
    alone, in_turn, over = (
        made[: len(CALIBRATION)],
        made[len(CALIBRATION) : -len(both)],
        made[-len(both) :],
    )
    return dict(zip(CALIBRATION, alone, strict=True)), {
        name: (in_turn[i], over[i]) for i, name in enumerate(both)
    }


def measure(model: Path, quick: bool) -> dict[str, Any]:
    """Return each batch's speeds and what its sides cost each other, and each setting's seconds a generation."""
    cases = list(CASES.items())[: 2 if quick else None]
    found: dict[str, Any] = {"batches": [], "settings": {}}
    for first in range(0, len(cases), AT_ONCE):
        batch = dict(cases[first : first + AT_ONCE])
        alone, pairs = all_runs(model, batch, turns=2 if quick else TURNS)
        speeds = calibrated([one for made in alone.values() for one in made])
        beside = costs(*(pairs[name] for name in SHARED))
        found["batches"].append({"speeds": asdict(speeds), "beside": asdict(beside)})
        found["settings"] |= {name: compared(pairs[name], speeds, beside) for name in batch}
    return found


def compared(runs: Runs, speeds: Speeds, beside: Beside) -> dict[str, tuple[float, float]]:
    """Return seconds a generation of a setting, predicted and seen."""
    turn, over = runs
    placements = simulated(turn, speeds)
    alone, generation = placements["in turn"], mean_of(turn, "generation")
    return {
        "in turn": (alone.whole, mean_of(turn, "whole")),
        "overlap": (overlapped(placements["overlap"], beside), mean_of(over, "whole")),
        "generation": (alone.generation, generation),
        "training": (alone.training + alone.other, mean_of(turn, "whole") - generation),
    }


def report(found: dict[str, Any]) -> bool:
    """Print the predictions beside what was seen; return whether enough settings are within the bound."""
    for batch in found["batches"]:
        speeds = batch["speeds"]
        print(
            f"a decoding step {1e3 * speeds['step']:.2f} ms, a row in it {1e6 * speeds['row']:.2f} us, ",
            end="",
        )
        print(
            f"training on a token {1e6 * speeds['token']:.1f} us, a micro-batch {1e3 * speeds['update']:.0f} ms, ",
            end="",
        )
        print(
            f"judging a completion {1e6 * speeds['reward']:.0f} us; while both sides work, ", end=""
        )
        words = "generation takes {generation:.2f} times as long, training {training:.2f} times; {handover:.2f} s between two"
        print(words.format(**batch["beside"]))
    print(
        "\n| setting | in turn: predicted | seen | | overlap: predicted | seen | | times as fast: predicted | seen |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    good = 0
    for name, case in found["settings"].items():
        (turn, turn_seen), (over, over_seen) = case["in turn"], case["overlap"]
        misses = turn / turn_seen - 1, over / over_seen - 1
        good += max(map(abs, misses)) <= BOUND
        sides = f"{turn:.2f} | {turn_seen:.2f} | {misses[0]:+.0%} | {over:.2f} | {over_seen:.2f} | {misses[1]:+.0%}"
        print(f"| {name} | {sides} | {turn / over:.2f} | {turn_seen / over_seen:.2f} |")
    print(
        f"\nwithin {BOUND:.0%} both in turn and with overlap: {good} of {len(found['settings'])} settings"
    )
    return good >= OF_TEN / 10 * len(found["settings"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer turns, and two settings")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if fewer than nine of ten are within the bound",
    )
    parser.add_argument(
        "--published", action="store_true", help="simulate published settings, and run nothing"
    )
    parser.add_argument("--model", type=Path, help="a model that `countdown_runs.warm_start` made")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    if given.published:
        print(*table(), sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or warm_start(Path(folder))
        if given.here:
            print(json.dumps([asdict(one) for one in run(model, *json.loads(given.here))]))
            return 0
        found = measure(model, given.quick)
    good = report(found)
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n")
    return int(given.check and not good)


if __name__ == "__main__":
    sys.exit(main())
