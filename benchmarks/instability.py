"""Does the monitor notice in time that the learning rate is too high, without false alarms?

    python -m benchmarks.instability [--quick] [--check] [--model FOLDER] [--out FILE]

The tiny Countdown model trains from its warm start with 16 groups per step. The learning rate rises
within 20 steps to six times the recipe's, and the reward collapses. The collapse begins after the
last step whose reward is at least the lowest of the first ten steps. Healthy runs use the recipe's
learning rate with every rule on, for three seeds. `--check` exits with 1 if the alarm
`reward_collapse` comes more than 10 steps after the collapse begins, or if a healthy run raises an
alarm.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.countdown_runs import recipe_for, train, warm_start
from benchmarks.recorded import save
from grpo_ext.observe import jsonl

COMMON = {"per_device_train_batch_size": 128, "lr_scheduler_type": "constant_with_warmup"}


def collapse(rewards: list[float]) -> int:
    """Return the step after the last one whose reward is at least the lowest of the first ten."""
    least = min(rewards[:10])
    return 1 + max(step for step, reward in enumerate(rewards, 1) if reward >= least)


def alarms(folder: Path) -> list[dict[str, Any]]:
    lines = jsonl.read(folder / "metrics.jsonl")
    return [
        {"alarm": line["alarm"], "step": line["step"], "action": line["action"]}
        for line in lines
        if "alarm" in line
    ]


def one_unstable(model: Path, folder: Path, steps: int) -> dict[str, Any]:
    rising = {"learning_rate": 2.4e-3, "warmup_steps": 20, "seed": 0, "max_steps": steps}
    rewards = [
        row["reward"]
        for row in train("ours", recipe_for(model, folder / "unstable", **COMMON, **rising))
    ]
    return {
        "collapse_begins": collapse(rewards),
        "alarms": alarms(folder / "unstable"),
        "reward_at_first": fmean(rewards[:10]),
        "reward_at_last": fmean(rewards[-10:]),
    }


def one_healthy(model: Path, folder: Path, steps: int, seed: int) -> dict[str, Any]:
    out = folder / f"healthy-{seed}"
    settings = {"learning_rate": 4e-4, "warmup_steps": 8, "seed": seed, "max_steps": steps}
    rewards = [row["reward"] for row in train("ours", recipe_for(model, out, **COMMON, **settings))]
    ends = {"reward_at_first": fmean(rewards[:10]), "reward_at_last": fmean(rewards[-10:])}
    return {"seed": seed, "alarms": alarms(out), **ends}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="22 steps, and one healthy seed of 30")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--model", type=Path, help="a model that `countdown_runs.warm_start` made")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    steps, seeds, healthy_steps = (22, 1, 30) if args.quick else (30, 3, 60)
    with tempfile.TemporaryDirectory(prefix="grpo_ext-instability-") as folder:
        model = args.model or warm_start(Path(folder))
        bad = one_unstable(model, Path(folder), steps)
        good = [one_healthy(model, Path(folder), healthy_steps, seed) for seed in range(seeds)]
    found = {"unstable": bad, "healthy": good}
    print(json.dumps(found, indent=1))
    if args.out:
        save(args.out, found)
    seen = [
        alarm["step"] - bad["collapse_begins"]
        for alarm in bad["alarms"]
        if alarm["alarm"] == "reward_collapse"
    ]
    bounds = {
        "the alarm came within 10 steps of the collapse's beginning": bool(seen)
        and 0 <= seen[0] <= 10,
        "no healthy run had an alarm": not any(run["alarms"] for run in good),
    }
    for bound, held in bounds.items():
        print(f"{'yes' if held else 'NO'}: {bound}")
    if args.check and not all(bounds.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
