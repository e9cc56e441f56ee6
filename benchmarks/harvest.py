"""Does one round of GRPO, harvest, SFT, GRPO beat GRPO alone on Countdown, with equally many generated tokens?

    python -m benchmarks.harvest [--quick] [--check] [--model FOLDER] [--out FILE]

GRPO alone is the demo's run. The loop spends half of its tokens on a first run with `harvest: {}`, trains once on the solved
problems (`recipes/countdown/tiny-harvest-sft.yaml`), and generates the other half in a second run. Both use the recipe's
learning rate, which falls to zero at the end of each run, also of a shortened one. Tokens are those of the completions. Three
seeds. `--check` exits with 1 if the loop's mean held-out accuracy is not above that of GRPO alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.countdown_runs import accuracy, recipe_for, train, warm_start
from grpo_ext.demo.pipeline import checked_launch, words
from grpo_ext.recipe.folder import recipe_folder
from grpo_ext.recipe.load import load_sft_recipe

SFT = recipe_folder() / "countdown" / "tiny-harvest-sft.yaml"


def grpo(model: Path, out: Path, steps: int, seed: int, **settings: Any) -> list[float]:
    """Train into `out`; return the number of generated tokens of each step."""
    recipe = recipe_for(model, out, seed=seed, max_steps=steps, **settings)
    rows = recipe.training.per_device_train_batch_size
    return [row["completions/mean_length"] * rows for row in train("ours", recipe)]


def one_seed(model: Path, folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Return accuracies and tokens of GRPO alone, and of the loop after each of its three stages."""
    alone, first, harvested, second = (folder / f"{name}-{seed}" for name in ("alone", "first", "harvested", "second"))
    tokens = {"alone": grpo(model, alone, steps, seed)}
    tokens["first"] = grpo(model, first, steps // 2, seed, harvest="{}")
    last = statistics.mean(tokens["first"][-8:])  # completions grow at first
    left = max(1, round((sum(tokens["alone"]) - sum(tokens["first"])) / last))
    sft = words(model_name_or_path=first, dataset_name=first / "harvest.jsonl", output_dir=harvested, seed=seed)
    checked_launch("grpo_ext.sft", SFT, sft, load_sft_recipe(SFT, sft))
    tokens["second"] = grpo(harvested, second, left, seed + 100)
    ends = {"alone": alone, "first": first, "harvested": harvested, "second": second}
    found = {name: accuracy(recipe_for(model, end, seed=seed), end) for name, end in ends.items()}
    kept = sum(1 for _ in (first / "harvest.jsonl").open(encoding="utf-8"))
    spent = {name: round(sum(steps)) for name, steps in tokens.items()}
    return {"seed": seed, "tokens": spent, "harvested": kept, "steps_of_second": left, "accuracy": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed and 16 steps")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the loop is not better")
    parser.add_argument("--model", type=Path, help="a warm-started model of the Countdown demo")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    seeds, steps = (range(1), 16) if args.quick else (range(3), 80)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model or warm_start(folder)
        runs = [one_seed(model, folder, steps, seed) for seed in seeds]
    for run in runs:
        spent = run["tokens"]
        print(f"seed {run['seed']}: {spent['alone']:,} tokens alone, {spent['first'] + spent['second']:,} in the loop; "
              f"{run['harvested']:,} completions harvested")  # fmt: skip
        for stage, found in run["accuracy"].items():
            print(f"  {stage:10} greedy {found['greedy']:.3f}  sampled {found['sampled']:.3f}  length {found['length']:.1f}")
    gains = [run["accuracy"]["second"]["sampled"] - run["accuracy"]["alone"]["sampled"] for run in runs]
    print(f"the loop less GRPO alone, sampled: {statistics.mean(gains):+.3f} ({', '.join(f'{g:+.3f}' for g in gains)})")
    if args.out:
        args.out.write_text(json.dumps(runs, indent=1) + "\n")
    if args.check and statistics.mean(gains) <= 0:
        sys.exit("the loop is not better than GRPO alone")


if __name__ == "__main__":
    main()
