"""How long do whole training steps take, including sampling, with ours and with plain TRL?

    python -m benchmarks.end_to_end [--quick] [--check] [--model FOLDER] [--out FILE]

Trains tiny Countdown for some steps after its warm start, which takes about a minute to make unless
`--model` names a model. TRL and ours alternate in one process. Prints the seconds per step, and the
seconds of the parts that both have. `--check` exits with 1 if ours is not at least twice as fast.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from benchmarks.countdown_runs import recipe_for, train, warm_start
from benchmarks.recorded import save

ASKED = 2.0


class Clock(TrainerCallback):
    """Measures the seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.start = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self.start)


def timed(side: str, model: Path, steps: int, seed: int) -> tuple[list[float], float]:
    """Return the seconds of each step except the first, and the mean reward of the last four steps.

    The reward shows whether the model learns.
    """
    clock = Clock()
    with tempfile.TemporaryDirectory() as out:
        logged = train(side, recipe_for(model, out, seed=seed, max_steps=steps), [clock])
    return clock.seconds[1:], statistics.mean(row["reward"] for row in logged[-4:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="one turn of four steps instead of three of eight"
    )
    parser.add_argument(
        "--check", action="store_true", help=f"exit with 1 if ours is not {ASKED} times as fast"
    )
    parser.add_argument("--model", type=Path, help="a model that `countdown_runs.warm_start` made")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    turns, steps = (1, 5) if args.quick else (3, 9)
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or warm_start(Path(folder))
        found: dict[str, list[float]] = {"TRL": [], "ours": []}
        for turn in range(turns):
            for side in ("TRL", "ours") if turn % 2 == 0 else ("ours", "TRL"):
                seconds, reward = timed(side, model, steps, seed=turn)
                found[side] += seconds
                print(
                    (
                        f"{side:5} turn {turn}: {statistics.median(seconds):.2f} s a step, reward "
                        f"{reward:.3f}"
                    ),
                    flush=True,
                )
    median = {side: statistics.median(seconds) for side, seconds in found.items()}
    ratio = median["TRL"] / median["ours"]
    print(
        f"TRL {median['TRL']:.2f} s a step, ours {median['ours']:.2f} s: {ratio:.2f} times "
        f"(asked {ASKED})"
    )
    if args.out:
        save(args.out, {"seconds": found, "median": median, "ratio": ratio})
    if args.check and ratio < ASKED:
        sys.exit("too slow")


if __name__ == "__main__":
    main()
