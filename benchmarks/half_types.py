"""How much do the float32 options for bfloat16 cost, and does bfloat16 learn as float32 does?

    python -m benchmarks.half_types [--quick] [--check] [--only cost|learning] [--model FOLDER]
        [--rounds N] [--seeds N] [--steps N] [--out FILE]

`cost` runs the same step in turn without options, with `residual_in_fp32`, and with
`attention_in_fp32` as well. It measures seconds of processor time of generation, and of scoring
with the backward pass. `learning` trains an adapter with a reward for the length of completions, in
both types with the same seeds. `--check` exits with 1 if the rewards of the two types differ by
more than four standard errors. The model is an untrained one of 0.5 million parameters unless
`--model` names another.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from benchmarks.deterministic import GROUP, make_trainer, tiny_model
from benchmarks.recorded import save
from grpo_ext import GRPOExtTrainer
from grpo_ext.samplers.hf import HFSampler
from grpo_ext.seams.generate import fast_generation
from grpo_ext.seams.precision import Precision
from grpo_ext.seams.scoring import run_model
from tests.support.half_type_run import steps_of

HALF = torch.bfloat16
REMEDIES = {
    "none": Precision(),
    "residual_in_fp32": Precision(HALF, torch.float32),
    "attention_in_fp32, too": Precision(HALF, torch.float32, whole_attention=True),
}


def one_step(trainer: GRPOExtTrainer, precision: Precision, seed: int) -> tuple[float, float]:
    """Sample a generation, score it with its backward pass, and return the seconds of both."""
    torch.manual_seed(seed)
    assert isinstance(trainer.sampler, HFSampler)
    trainer.sampler.precision = precision
    run = partial(run_model, trainer.accelerator, precision)
    scorer = replace(trainer.parts.scorer, run=run)
    dataset: Any = trainer.train_dataset
    rows = [dict(dataset[i // GROUP]) for i in range(trainer.args.per_device_train_batch_size)]
    start = time.process_time()
    with fast_generation(trainer.model):
        table = trainer.parts.rollout(rows)
    generated = time.process_time()
    scores = scorer.score(trainer.model, table)
    scores.logps[table.completion_mask.bool()].mean().backward()
    trainer.model.zero_grad()
    return generated - start, time.process_time() - generated


def measure_cost(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return the seconds of a step with each option, and their ratio to those without options."""
    args.dtype = "bfloat16"
    trainer = make_trainer(args, folder)
    trainer.model.train()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in REMEDIES}
    for number in range(args.rounds + 1):
        order = list(REMEDIES)
        if number % 2:
            order.reverse()
        for name in order:
            taken = one_step(trainer, REMEDIES[name], number)
            if number:  # the first warms up
                seconds[name].append(taken)
    plain = [sum(step) for step in seconds["none"]]
    rows = []
    for name, steps in seconds.items():
        ratios = [sum(step) / before for step, before in zip(steps, plain, strict=True)]
        generation = median(part for part, _ in steps)
        scoring = median(part for _, part in steps)
        row = {"remedy": name, "generation": generation, "scoring": scoring, "ratios": ratios}
        rows.append(row)
        print(
            f"{name:24} generation {generation:.2f} s, scoring and backward pass {scoring:.2f} s; "
            f"a step takes {median(ratios):.3f} times as long ({min(ratios):.3f} to "
            f"{max(ratios):.3f} in {len(ratios)} rounds)",
            flush=True,
        )
    return rows


def measure_learning(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Train with each seed in both types; return the rewards of the steps."""
    rows = []
    for seed in range(args.seeds):
        for dtype in (torch.float32, HALF):
            name = str(dtype).removeprefix("torch.")
            with tempfile.TemporaryDirectory() as out:
                entries = steps_of(folder, Path(out), dtype, args.steps, seed=seed)
            rewards = [entry["reward"] for entry in entries]
            differences = [entry["sampling/logp_difference/mean"] for entry in entries]
            row = {"seed": seed, "dtype": name, "rewards": rewards}
            rows.append(row | {"logp_difference": fmean(differences)})
            print(
                f"seed {seed} {name:9} reward {' '.join(f'{reward:.3f}' for reward in rewards)}; "
                f"log-probs of sampler and trainer differ by {fmean(differences):.1e}",
                flush=True,
            )
    return rows


def gains(rows: list[dict[str, Any]], dtype: str) -> list[float]:
    """Return the last step's reward minus that of the first step, for each seed."""
    return [row["rewards"][-1] - row["rewards"][0] for row in rows if row["dtype"] == dtype]


def apart(rows: list[dict[str, Any]]) -> bool:
    """Return whether the gains of both types differ by more than four standard errors."""
    whole = gains(rows, "float32")
    half = gains(rows, "bfloat16")
    differences = [a - b for a, b in zip(half, whole, strict=True)]
    error = stdev(differences) / sqrt(len(differences))
    print(
        f"gain: float32 {fmean(whole):+.3f}, bfloat16 {fmean(half):+.3f}; difference "
        f"{fmean(differences):+.3f}, standard error {error:.3f}"
    )
    return abs(fmean(differences)) > 4 * error


def parse() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds, two seeds of three steps")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the types differ")
    parser.add_argument("--only", choices=["cost", "learning"], help="one of the two parts")
    parser.add_argument("--model", type=Path, help="the folder of a model")
    parser.add_argument("--rounds", type=int, default=7, help="measured steps of each remedy")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps of a run")
    parser.add_argument("--step", type=int, default=16, help="completions of a measured step")
    parser.add_argument("--tokens", type=int, default=32, help="the most tokens of a completion")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    if args.quick:
        args.rounds = 2
        args.seeds = 2
        args.steps = 3
    return args


def main() -> None:
    args = parse()
    disable_progress_bar()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.model or tiny_model(Path(temporary))
        if args.only != "learning":
            figures["cost"] = measure_cost(args, folder)
        if args.only != "cost":
            figures["learning"] = measure_learning(args, folder)
    if args.out:
        save(args.out, figures)
    if "learning" in figures and apart(figures["learning"]) and args.check:
        sys.exit("the rewards of bfloat16 and float32 differ")


if __name__ == "__main__":
    main()
