"""How long whole steps of Countdown take, sampling and all, ours beside plain TRL's.

    python benchmarks/end_to_end.py [--quick] [--check] [--model FOLDER] [--out FILE]

The demo's model after its warm start (made first, about a minute, unless `--model` names one) is trained for some steps by TRL
and by ours, in turn, in one process. Prints seconds a step, and the seconds of the parts that both have. `--check` exits with 1
where ours is not at least twice as fast.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from trl import GRPOTrainer
from warm_start import RECIPE, countdown_warm_start

from grpo_ext import GRPOExtTrainer
from grpo_ext.demo.pipeline import words
from grpo_ext.recipe.load import load_recipe
from grpo_ext.setup_run import named_rewards_and_weights, train_rows

ASKED = 2.0


class Clock(TrainerCallback):
    """Seconds of each step."""

    def __init__(self):
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.start = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self.start)


def train(side: str, model: Path, steps: int, seed: int) -> tuple[list[float], float]:
    """Seconds of each step but the first, and the share of the reward at the end, as a sign that it learns."""
    with tempfile.TemporaryDirectory() as out:
        more = words(eval_strategy="no", eval_on_start=False, save_strategy="no", disable_tqdm=True, max_steps=steps)
        recipe = load_recipe(RECIPE, words(model_name_or_path=model, output_dir=out, seed=seed) + more)
        rewards, recipe.training.reward_weights = named_rewards_and_weights(recipe)
        recipe.training.eval_on_start = False
        clock = Clock()
        trainer = (GRPOExtTrainer if side == "ours" else GRPOTrainer)(
            str(model), rewards, recipe.training, train_rows(recipe), callbacks=[clock]
        )
        trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    return clock.seconds[1:], statistics.mean(rewards[-4:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn of four steps instead of three of eight")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 where ours is not {ASKED} times as fast")
    parser.add_argument("--model", type=Path, help="a warm-started model of the Countdown demo")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    turns, steps = (1, 5) if args.quick else (3, 9)
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or countdown_warm_start(Path(folder))
        logging.disable(logging.WARNING)
        found: dict[str, list[float]] = {"TRL": [], "ours": []}
        for turn in range(turns):
            for side in ("TRL", "ours") if turn % 2 == 0 else ("ours", "TRL"):
                seconds, reward = train(side, model, steps, seed=turn)
                found[side] += seconds
                print(
                    f"{side:5} turn {turn}: {statistics.median(seconds):.2f} s a step, reward {reward:.3f}", flush=True
                )
    median = {side: statistics.median(seconds) for side, seconds in found.items()}
    ratio = median["TRL"] / median["ours"]
    print(f"TRL {median['TRL']:.2f} s a step, ours {median['ours']:.2f} s: {ratio:.2f} times (asked {ASKED})")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"seconds": found, "median": median, "ratio": ratio}, indent=1) + "\n")
    if args.check and ratio < ASKED:
        sys.exit("too slow")


if __name__ == "__main__":
    main()
