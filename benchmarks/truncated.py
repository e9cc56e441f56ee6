"""How does truncated sampling affect learning with ours and with plain TRL?

    python -m benchmarks.truncated [--quick] [--check] [--model FOLDER] [--out FILE]

The tiny Countdown model trains for 80 steps with top_k 20 and top_p 0.9, from its warm start, which
takes about a minute to make unless `--model` names a model. TRL scores completions as if they were
drawn from the whole vocabulary; ours scores them under the policy that drew them. Prints the
held-out accuracy after the same steps, one row per seed. `--check` exits with 1 if ours is worse
than TRL, by the 95 % interval of the difference over the seeds; a single seed has no interval.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.countdown_runs import accuracy, recipe_for, train, warm_start
from benchmarks.recorded import save
from benchmarks.seeds import as_text
from grpo_ext.common.estimates import mean_difference

SAMPLING = {"top_k": 20, "top_p": 0.9}


def run(side: str, model: Path, seed: int, steps: int) -> dict[str, float]:
    """Return the held-out accuracy after training, and how far scored and sampled log-probs differ.

    The difference is 0 if it is not measured.
    """
    with tempfile.TemporaryDirectory() as out:
        recipe = recipe_for(model, out, seed=seed, max_steps=steps, **SAMPLING)
        logged = train(side, recipe)
        found = accuracy(recipe, out)
    off = [
        row["sampling/logp_difference/max"]
        for row in logged
        if "sampling/logp_difference/max" in row
    ]
    return {**found, "logp_difference": max(off, default=float("nan"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 10 steps")
    parser.add_argument("--check", action="store_true", help="exit with 1 if ours is behind")
    parser.add_argument("--model", type=Path, help="a model that `countdown_runs.warm_start` made")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    seeds, steps = (1, 10) if args.quick else (3, 80)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or warm_start(Path(folder))
        for seed in range(seeds):
            row = {side: run(side, model, seed, steps) for side in ("TRL", "ours")}
            rows.append(row)
            words = [
                f"{side}: greedy {x['greedy']:.3f} sampled {x['sampled']:.3f}"
                for side, x in row.items()
            ]
            print(
                (
                    f"seed {seed}  {'   '.join(words)}   ours off by "
                    f"{row['ours']['logp_difference']:.1e}"
                ),
                flush=True,
            )
    if args.out:
        save(args.out, {"steps": steps, **SAMPLING, "seeds": rows})
    gain = mean_difference(
        [row["TRL"]["greedy"] for row in rows], [row["ours"]["greedy"] for row in rows]
    )
    print(f"ours minus TRL, greedy: {as_text(gain)}")
    if args.check and gain is not None and gain.verdict == "fell":
        sys.exit("ours is behind")


if __name__ == "__main__":
    main()
