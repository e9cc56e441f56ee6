"""Does a run that is killed at any moment and restarted end like an uninterrupted run?

    python -m benchmarks.kills [--quick] [--check] [--settings NAME ...] [--kinds NAME ...]
        [--ranks N ...] [--steps N ...] [--moments N] [--seed N] [--out FILE]

SIGKILL ends a run of two epochs with every stateful feature on (`fault_runs.py`): at each of its 16
steps in turn, right after each save, while it writes a checkpoint, and at random moments. Each
time, the run is restarted and continues. SIGKILL also ends a sampler process while it starts, works
and waits; there the run continues by itself. All trials run on one rank and on two. Weights,
optimizer, metrics and samples are compared bit for bit with those of the uninterrupted run.
`--check` exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.recorded import save
from tests.support.fault_runs import (
    STEPS,
    KillAt,
    build_start,
    left_by,
    lost,
    quiet,
    start,
    wait,
    work_folder,
)
from tests.support.killed_runs import SETTINGS, train

KINDS = ("steps", "saved", "saving", "moments", "sampler")  # of kills


@dataclass
class Series:
    """The runs of one setting on one number of ranks, with the result of an uninterrupted run."""

    model: Path
    folder: Path
    settings: dict[str, Any]
    ranks: int
    figures: dict[str, Any] = field(default_factory=dict)

    def begin(self) -> None:
        whole = self.folder / "whole"
        began = time.monotonic()
        if any(self.run(whole)):
            raise RuntimeError(said(whole))
        self.seconds, self.wanted = time.monotonic() - began, left_by(whole)
        self.figures["seconds_of_the_whole_run"] = round(self.seconds, 1)

    def run(self, out: Path, limit: float | None = None, **how: Any) -> list[int]:
        return wait(
            start(self.ranks, out, partial(train, self.model, out, **how, **self.settings)), limit
        )

    def killed(self, out: Path, limit: float | None = None, **how: Any) -> bool:
        return -signal.SIGKILL in self.run(out, limit, **how)

    def judge(self, name: str, kills: int, outs: list[Path]) -> None:
        """Let the killed runs finish, and compare them with the uninterrupted run."""
        different: list[str] = []
        for out in outs:
            different += [said(out)] if any(self.run(out)) else lost(left_by(out), self.wanted)
        self.figures[name] = {"kills": kills, "different": different}
        print(
            (
                f"{self.ranks} rank(s), {name}: killed {kills} times, different: "
                f"{different or 'nothing'}"
            ),
            flush=True,
        )


def said(out: Path) -> str:
    return (out / "rank-0.log").read_text(errors="replace")[-3000:]


def one(
    series: Series, kinds: list[str], steps: list[int], moments: int, chance: random.Random
) -> dict[str, Any]:
    """Return the differences after each series of kills."""
    series.begin()
    folder = series.folder
    ranks = series.ranks
    seconds = series.seconds
    if "steps" in kinds:
        hits = sum(
            series.killed(folder / "steps", kill=KillAt(step, step % ranks)) for step in steps
        )
        series.judge("at each step", hits, [folder / "steps"])
    if "saved" in kinds:
        hits = sum(
            series.killed(folder / "saved", kill=KillAt(step, step % ranks, saved=True))
            for step in steps
        )
        series.judge("after each save", hits, [folder / "saved"])
    if "saving" in kinds:
        hits = sum(
            series.killed(folder / "saving", in_save=(step, chance.uniform(0, 0.05)))
            for step in steps[1::3]
        )
        series.judge("in a checkpoint", hits, [folder / "saving"])
    beside = "sampler" in series.settings
    if "moments" in kinds:
        hits, outs, latest = (
            0,
            [folder / "moments-1"],
            1.0 if beside else 0.6,
        )  # a restart begins with a sampler, for seconds
        while hits < moments:
            if series.killed(outs[-1], limit=chance.uniform(0.1, latest) * seconds):
                hits += 1
            else:  # it reached its end: the next kills hit another run
                outs.append(folder / f"moments-{len(outs) + 1}")
        series.judge("at random moments", hits, outs)
    if "sampler" in kinds and beside:
        hits = 0
        outs = []
        while hits < moments:
            outs.append(folder / f"sampler-{len(outs) + 1}")
            at = {
                1: chance.uniform(0, 0.5 * seconds),
                **{chance.randint(2, 5): chance.uniform(0, 0.1) for _ in range(2)},
            }
            series.run(outs[-1], strikes=at)
            hits += sum(
                log.read_text(errors="replace").count("\nsampler killed")
                for log in outs[-1].glob("rank-*.log")
            )
        series.judge("of the sampler", hits, outs)
    return series.figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three steps and two moments")
    parser.add_argument("--check", action="store_true", help="exit with 1 if anything differs")
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--moments", type=int, help="kills at random moments, of each kind (20)")
    parser.add_argument("--steps", type=int, nargs="*", help="that are killed (all)")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    steps = (
        args.steps
        if args.steps is not None
        else [2, 7, 11]
        if args.quick
        else list(range(1, STEPS + 1))
    )
    moments = args.moments if args.moments is not None else 2 if args.quick else 20
    quiet()
    found = []
    with work_folder() as folder:
        model = build_start(Path(folder) / "model")
        for name in args.settings:
            for ranks in args.ranks:
                print(f"-- {name}", flush=True)
                series = Series(model, Path(folder) / f"{name}-{ranks}", SETTINGS[name], ranks)
                figures = one(
                    series, args.kinds, steps, moments, random.Random(1000 * args.seed + ranks)
                )
                found.append({"settings": name, "ranks": ranks, **figures})
    if args.out:
        save(args.out, found)
    parts = [part for figures in found for part in figures.values() if isinstance(part, dict)]
    wrong = [part for part in parts if part["different"]]
    print(
        f"{sum(part['kills'] for part in parts)} kills; {len(wrong)} series ended otherwise "
        f"than the uninterrupted run"
    )
    if args.check and wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
