"""Does the monitor notice a learning rate that is too high in time, and does a rollback save the run? Are there false alarms?

    python -m benchmarks.instability [--quick] [--check] [--model FOLDER] [--out FILE]

The tiny Countdown model trains from its warm start, 16 groups per step. The learning rate rises within 20 steps to six times
the recipe's, and the reward collapses. The collapse begins after the last step whose reward is no lower than the lowest of the
first ten steps. With `health_rules: {reward_collapse: {action: rollback}}` and `rollback_factor: 0.15` the run goes back.
Healthy runs have the recipe's learning rate, three seeds, with every rule on. `--check` exits with 1 if an alarm comes later
than 10 steps after the beginning, the run does not end above its start, or a healthy run has an alarm.
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
from grpo_ext.observe import jsonl
from grpo_ext.recipe.load import Recipe

COMMON = {"per_device_train_batch_size": 128, "lr_scheduler_type": "constant_with_warmup"}
COLLAPSE = "{reward_collapse: {threshold: 6, action: rollback}}"


def unstable(model: Path, out: Path, steps: int, rollback: bool) -> Recipe:
    safety = {"health_rules": COLLAPSE, "rollback_factor": 0.15} if rollback else {}
    rising = {"learning_rate": 2.4e-3, "warmup_steps": 20, "seed": 0, "max_steps": steps}
    saved = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 5}
    return recipe_for(model, out, **COMMON, **rising, **saved, **safety)


def collapse(rewards: list[float]) -> int:
    """Return the step at which the reward begins to fall for good: the one after the last that is like the first ten."""
    least = min(rewards[:10])
    return 1 + max(step for step, reward in enumerate(rewards, 1) if reward >= least)


def alarms(folder: Path) -> list[dict[str, Any]]:
    lines = jsonl.read(folder / "metrics.jsonl")
    return [{"alarm": line["alarm"], "step": line["step"], "action": line["action"]} for line in lines if "alarm" in line]


def one_unstable(model: Path, folder: Path, steps: int) -> dict[str, Any]:
    """Return the run without intervention, and the same run with rollback."""
    left = [row["reward"] for row in train("ours", unstable(model, folder / "left", steps // 2, rollback=False))]
    saved = [row["reward"] for row in train("ours", unstable(model, folder / "saved", steps, rollback=True))]
    rollbacks = json.loads((folder / "saved" / "rollbacks.json").read_text(encoding="utf-8"))
    return {
        "collapse_begins": collapse(left),
        "alarms_left_to_itself": alarms(folder / "left"),
        "rollbacks": rollbacks,
        "reward_at_first": fmean(saved[:10]),
        "reward_at_last": fmean(saved[-10:]),
        "reward_at_last_left_to_itself": fmean(left[-10:]),
    }


def one_healthy(model: Path, folder: Path, steps: int, seed: int) -> dict[str, Any]:
    out = folder / f"healthy-{seed}"
    settings = {"learning_rate": 4e-4, "warmup_steps": 8, "seed": seed, "max_steps": steps}
    rewards = [row["reward"] for row in train("ours", recipe_for(model, out, **COMMON, **settings))]
    ends = {"reward_at_first": fmean(rewards[:10]), "reward_at_last": fmean(rewards[-10:])}
    return {"seed": seed, "alarms": alarms(out), **ends}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="44 steps, and one healthy seed of 30")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--model", type=Path, help="a model that `countdown_runs.warm_start` made")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    steps, seeds, healthy_steps = (44, 1, 30) if args.quick else (60, 3, 60)
    with tempfile.TemporaryDirectory(prefix="grpo_ext-instability-") as folder:
        model = args.model or warm_start(Path(folder))
        bad = one_unstable(model, Path(folder), steps)
        good = [one_healthy(model, Path(folder), healthy_steps, seed) for seed in range(seeds)]
    found = {"unstable": bad, "healthy": good}
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    late = bad["rollbacks"][0]["step"] - bad["collapse_begins"] if bad["rollbacks"] else None
    bounds = {
        "the alarm came within 10 steps of the collapse's beginning": late is not None and 0 <= late <= 10,
        "the run ended above where it began": bad["reward_at_last"] > bad["reward_at_first"],
        "no healthy run had an alarm": not any(run["alarms"] for run in good),
    }
    for bound, held in bounds.items():
        print(f"{'yes' if held else 'NO'}: {bound}")
    if args.check and not all(bounds.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
