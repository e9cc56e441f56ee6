"""How much does leaving out groups without signal improve Countdown in equal time?

    python -m benchmarks.zero_signal [--quick] [--check] [--model FOLDER] [--seeds N] [--seconds S]
        [--out FILE]

Plain TRL, ours, ours with `group_filter: refill`, ours with `curriculum: adaptive`, and ours with
both train tiny Countdown after its warm start for the same time, with three seeds and a constant
learning rate. Prints the greedy accuracy on held-out problems at the end, the time to reach plain
TRL's accuracy, and the difference from TRL, with the same seed, in mean accuracy over the run. Time
is CPU time of the process without evaluations, so that other processes do not count. `--check`
exits with 1 if refill alone or both together are worse than TRL in that mean, by the 95 % interval
over the seeds. A single seed, as with `--quick`, has no interval: it is only measured, and
`--check` says so. In single runs, the time to reach TRL's accuracy varies from 0.1 to 0.8 of TRL's
time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from benchmarks.countdown_runs import recipe_for, train, warm_start
from benchmarks.recorded import save
from benchmarks.seeds import as_text
from grpo_ext.common.estimates import Estimate, mean_difference
from grpo_ext.evaluation.completions import generate_completions
from grpo_ext.evaluation.evaluate import evaluate
from grpo_ext.recipe.load import Recipe
from grpo_ext.rewards import build
from grpo_ext.run.from_recipe import eval_rows

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "TRL": ("TRL", {}),
    "ours": ("ours", {}),
    "refill": ("ours", {"group_filter": "refill"}),
    "adaptive": ("ours", {"curriculum": "adaptive"}),
    "both": ("ours", {"group_filter": "refill", "curriculum": "adaptive"}),
}
CHECKED = ("refill", "both")  # variants that `--check` asks about
POINTS = 12  # evaluations of a run


class Watch(TrainerCallback):
    """Ends a run after a number of seconds of CPU time, not counting evaluations."""

    def __init__(self, recipe: Recipe, seconds: float):
        self.rows, self.seconds = list(eval_rows(recipe)), seconds
        self.length: Any = recipe.training.max_completion_length  # a number in this recipe
        self.found: list[tuple[float, float]] = []  # seconds, accuracy
        self.away = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = time.process_time()
        used = now - self.began - self.away
        if used < self.seconds * (len(self.found) + 1) / POINTS:
            return
        model = kwargs["model"]
        tokenizer = kwargs["processing_class"]
        summary, _ = evaluate(
            partial(generate_completions, model, tokenizer, batch_size=256),
            self.rows,
            {"countdown": build("countdown")},
            ["countdown"],
            max_new_tokens=self.length,
            num_samples=0,
        )
        self.found.append((used, summary["greedy"]["countdown"]))
        control.should_training_stop = used >= self.seconds
        self.away += time.process_time() - now


def curve(variant: str, model: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Return a run's seconds and accuracies, and the share of generated groups with signal."""
    side, settings = VARIANTS[variant]
    with tempfile.TemporaryDirectory() as out:
        recipe = recipe_for(
            model,
            out,
            seed=seed,
            max_steps=100_000,
            lr_scheduler_type="constant_with_warmup",
            **settings,
        )
        watch = Watch(recipe, seconds)
        logged = train(side, recipe, [watch])
    mixed = [row["groups/mixed"] for row in logged if "groups/mixed" in row]
    return {
        "curve": watch.found,
        "steps": len(logged),
        "mixed": statistics.mean(mixed) if mixed else None,
    }


def seconds_to(found: list[tuple[float, float]], accuracy: float) -> float | None:
    """Return the seconds after which a run first reached `accuracy`; `None` if it never did."""
    return next((seconds for seconds, value in found if value >= accuracy), None)


def mean_accuracy(found: list[tuple[float, float]]) -> float:
    """Return the mean accuracy over a run, which varies less between seeds than the last one."""
    return statistics.mean(value for _, value in found)


def gains(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Estimate | None]:
    """Return, by variant, how far its mean accuracy is above TRL's with the same seed."""
    by_seed = {name: [mean_accuracy(run["curve"]) for run in some] for name, some in runs.items()}
    return {name: mean_difference(by_seed["TRL"], values) for name, values in by_seed.items()}


def behind(gained: dict[str, Estimate | None]) -> list[str]:
    """Return the variants that `--check` covers and that are clearly worse than TRL."""
    return [name for name in CHECKED if verdict(gained[name]) == "fell"]


def undecided(gained: dict[str, Estimate | None]) -> list[str]:
    """Return the variants that `--check` covers but for which the seeds give no verdict."""
    return [name for name in CHECKED if verdict(gained[name]) is None]


def verdict(gain: Estimate | None) -> str | None:
    return None if gain is None else gain.verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed and a quarter of the time")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if refill or both are behind TRL"
    )
    parser.add_argument("--model", type=Path, help="a model that `countdown_runs.warm_start` made")
    parser.add_argument("--seeds", type=int, help="number of seeds (default 3; 1 with --quick)")
    parser.add_argument("--seconds", type=float, help="of each run (default 120; 30 with --quick)")
    parser.add_argument("--out", type=Path, help="write the curves as JSON")
    args = parser.parse_args()
    seconds = args.seconds or (30 if args.quick else 120)
    seeds = range(args.seeds or (1 if args.quick else 3))
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or warm_start(Path(folder))
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
        for seed in seeds:  # variants in turn, so that a machine that slows down does so for all
            for name in VARIANTS:
                runs[name].append(curve(name, model, seconds, seed))
    finals = [run["curve"][-1][1] for run in runs["TRL"]]
    gained = gains(runs)
    for name, found in runs.items():
        ends = [run["curve"][-1][1] for run in found]
        reached = [
            seconds_to(run["curve"], final) for run, final in zip(found, finals, strict=True)
        ]
        late = [seconds if value is None else value for value in reached]
        print(
            f"{name:9} accuracy {statistics.mean(ends):.3f} "
            f"({', '.join(f'{end:.3f}' for end in ends)}) after {seconds:g} s, "
            f"steps {statistics.mean(run['steps'] for run in found):.0f}, TRL's reached in "
            f"{statistics.mean(late):.0f} s" + (" (not by all)" if None in reached else "")
        )
        if name != "TRL":
            print(f"{'':9} mean accuracy over the run minus TRL's: {as_text(gained[name])}")
    if args.out:
        save(args.out, runs)
    if not args.check:
        return
    open_questions = undecided(gained)
    if open_questions:
        print(
            f"--check decides nothing about {', '.join(open_questions)}: one seed has no interval"
        )
    worse = behind(gained)
    if worse:
        sys.exit(f"behind TRL: {', '.join(worse)}")


if __name__ == "__main__":
    main()
