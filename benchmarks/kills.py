"""Does a run that is killed at any moment, and restarted, end like an uninterrupted run?

    python -m benchmarks.kills [--quick] [--check] [--out FILE]

SIGKILL ends a run of two epochs with every stateful feature on (`fault_runs.py`) at each of its 16 steps in turn, while it
writes a checkpoint, and at random moments; each time it is restarted and continues. On one and on two ranks. Weights,
optimizer, metrics and samples are compared bit for bit with those of the uninterrupted run. `--check` exits with 1 if anything
differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fault_runs import STEPS, KillAt, build_start, left_by, lost, make, quiet, start, wait, work_folder


def train(model: Path, out: Path, kill: KillAt | None = None, in_save: tuple[int, float] | None = None) -> None:
    """The work of a process: continue from the newest complete checkpoint, and be killed on the way if asked."""
    trainer = make(model, out)
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

        checkpoints.write = dies  # type: ignore[method-assign]  # the kill is to strike while it writes
    trainer.train(True)


def killed(codes: list[int]) -> bool:
    return -signal.SIGKILL in codes


def one(model: Path, folder: Path, ranks: int, steps: list[int], moments: int, seed: int) -> dict[str, Any]:
    """Return what differed after each series of kills, for one number of ranks."""
    chance = random.Random(seed)
    whole = folder / f"whole-{ranks}"
    began = time.monotonic()
    codes = wait(start(ranks, whole, lambda: train(model, whole)))
    if any(codes):
        raise RuntimeError((whole / "rank-0.log").read_text()[-3000:])
    seconds = time.monotonic() - began
    wanted = left_by(whole)
    figures: dict[str, Any] = {"ranks": ranks, "seconds_of_the_whole_run": round(seconds, 1)}

    def judged(name: str, kills: int, outs: list[Path]) -> None:
        """Let the killed runs reach their end, and compare them."""
        different: list[str] = []
        for out in outs:
            codes = wait(start(ranks, out, partial(train, model, out)))
            different += [(out / "rank-0.log").read_text()[-2000:]] if any(codes) else lost(left_by(out), wanted)
        figures[name] = {"kills": kills, "different": different}
        print(f"{ranks} rank(s), {name}: killed {kills} times, different: {different or 'nothing'}", flush=True)

    def attempt(out: Path, limit: float | None = None, **how: Any) -> bool:
        return killed(wait(start(ranks, out, lambda: train(model, out, **how)), limit))

    out = folder / f"steps-{ranks}"
    hits = sum(attempt(out, kill=KillAt(step, step % ranks)) for step in steps)
    judged("at each step", hits, [out])
    saves = folder / f"saves-{ranks}"
    hits = sum(attempt(saves, in_save=(step, chance.uniform(0, 0.05))) for step in steps[1::3])
    judged("in a checkpoint", hits, [saves])
    hits, outs = 0, [folder / f"moments-{ranks}-1"]
    while hits < moments:
        if attempt(outs[-1], limit=chance.uniform(0.1, 0.6) * seconds):
            hits += 1
        else:  # it reached its end: the next kills hit another run
            outs.append(folder / f"moments-{ranks}-{len(outs) + 1}")
    judged("at random moments", hits, outs)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three steps and two moments")
    parser.add_argument("--check", action="store_true", help="exit with 1 if anything differs")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    steps, moments = ([2, 7, 11], 2) if args.quick else (list(range(1, STEPS + 1)), 20)
    quiet()
    with work_folder() as folder:
        model = build_start(Path(folder) / "model")
        found = [one(model, Path(folder), ranks, steps, moments, seed=ranks) for ranks in args.ranks]
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    wrong = [part for figures in found for part in figures.values() if isinstance(part, dict) and part["different"]]
    kills = sum(part["kills"] for figures in found for part in figures.values() if isinstance(part, dict))
    print(f"{kills} kills; {len(wrong)} series ended otherwise than the uninterrupted run")
    if args.check and wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
