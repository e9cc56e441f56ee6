"""How do grpo, bnpo and dr_grpo differ in reward, completion length and the weight of a token?

    python -m benchmarks.loss_types [--quick] [--check] [--model FOLDER] [--plot FILE.png]
        [--out FILE]

The losses divide the sum over a completion's tokens by its length (grpo), by the number of tokens
in the step (bnpo, like dapo) or by a constant (dr_grpo). Dividing by the length is said to favor
short correct answers and long wrong ones. The tiny model trains with each loss from the same warm
start, for three seeds, and the plot shows reward and completion length over the steps. The table
gives the weight of one token in completions of several lengths, computed as the gradient of the
aggregation. `--check` exits with 1 if a weight differs from the formula.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from benchmarks.countdown_runs import accuracy, recipe_for, train, warm_start
from benchmarks.recorded import save
from grpo_ext.reproduce.measures.formulas import token_weights

LOSSES = ("grpo", "bnpo", "dr_grpo")
LENGTHS = (8, 24, 40, 56, 72)


def relative_weights() -> dict[str, list[float]]:
    """Return, by loss, a token's weight in completions of `LENGTHS`, relative to 40 tokens."""
    table = {}
    for name in LOSSES:
        weights = token_weights(name, LENGTHS)
        table[name] = [weight / weights[LENGTHS.index(40)] for weight in weights]
    return table


def run(loss_type: str, model: Path, seed: int, steps: int) -> dict[str, Any]:
    """Return the logs, and held-out accuracy and length at the end."""
    with tempfile.TemporaryDirectory() as out:
        recipe = recipe_for(model, out, seed=seed, max_steps=steps, loss_type=loss_type)
        logged = train("ours", recipe)
        found = accuracy(recipe, out)
    rewards = [row["rewards/countdown/mean"] for row in logged]
    return {
        "reward": rewards,
        "length": [row["completions/mean_length"] for row in logged],
        "end": found,
    }


def plot(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Plot reward and length over the steps: the mean over seeds, and each seed behind it."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axis, key, label in zip(
        axes, ("reward", "length"), ("countdown reward", "completion length, tokens"), strict=True
    ):
        for number, (name, runs) in enumerate(found.items()):
            curves = torch.tensor([r[key] for r in runs])  # (seeds, steps)
            smooth = torch.nn.functional.avg_pool1d(
                curves.unsqueeze(1), 5, 1, 2, count_include_pad=False
            ).squeeze(1)
            axis.plot(smooth.T, color=f"C{number}", alpha=0.25, linewidth=0.8)
            axis.plot(smooth.mean(0), color=f"C{number}", label=name)
        axis.set(xlabel="step", ylabel=label)
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 8 steps")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a token's weight is not the formula's"
    )
    parser.add_argument("--model", type=Path, help="a model that `countdown_runs.warm_start` made")
    parser.add_argument("--plot", type=Path, help="where to draw the curves")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    weights = relative_weights()
    print("weight of a token by the length of its completion, 40 tokens being 1")
    print("length   " + "".join(f"{n:8}" for n in LENGTHS))
    for name, values in weights.items():
        print(f"{name:9}" + "".join(f"{value:8.2f}" for value in values))
    seeds, steps = (1, 8) if args.quick else (3, 80)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in LOSSES}
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or warm_start(Path(folder))
        for seed in range(seeds):
            for name in LOSSES:
                result = run(name, model, seed, steps)
                found[name].append(result)
                print(
                    f"seed {seed} {name:8} "
                    + " ".join(f"{k} {v:.3f}" for k, v in result["end"].items()),
                    flush=True,
                )
    for name, runs in found.items():
        means = {
            key: statistics.mean(r["end"][key] for r in runs)
            for key in ("greedy", "sampled", "length")
        }
        print(f"{name:8} " + " ".join(f"{key} {value:.3f}" for key, value in means.items()))
    if args.plot:
        plot(found, args.plot)
    if args.out:
        save(args.out, {"steps": steps, "token_weights": weights, "runs": found})
    wanted = {"grpo": [40 / n for n in LENGTHS], "bnpo": [1.0] * 5, "dr_grpo": [1.0] * 5}
    wrong = [
        name
        for name in LOSSES
        if max(abs(a - b) for a, b in zip(weights[name], wanted[name], strict=True)) > 1e-5
    ]
    if args.check and wrong:
        sys.exit(f"weights are not the formula's: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
