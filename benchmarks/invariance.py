"""How much does the gradient of a step change if it is cut into other micro-batches?

    python -m benchmarks.invariance [--quick] [--check] [--out FILE]

Prints, for every loss with KL, the largest relative difference between the gradient of a cut step
and that of one whole batch on one rank, for ours and for TRL. The cuts are gradient accumulation
over 1, 2, 4 and 8 micro-batches, steps_per_generation of half, once and twice that number, and one
and two ranks. The completions are fixed; some are empty (not for TRL), and some are truncated and
masked. `--check` exits with 1 if one of our differences is above 1e-5.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.recorded import save
from grpo_ext.run.ranks import leave_ranks
from tests.support.fixed_completions import (
    CUTS,
    LOSSES,
    Exact,
    Plain,
    Tensors,
    apart,
    keep_order,
    train,
)


def first_of_two_ranks(ga: int, spg: int) -> list[int]:
    """Return the numbers of all prompts, beginning with those in the first step of two ranks."""
    if spg <= ga:
        return list(range(1, 17))
    return [1, 2, 5, 6, 3, 4, *range(7, 17)]  # each rank holds two steps' worth of a generation


def settings_for(loss_type: str, ours: bool) -> dict[str, Any]:
    """Return settings with KL and masked truncated completions."""
    settings = {"loss_type": loss_type, "beta": 0.1, "mask_truncated_completions": True}
    settings |= {"epsilon_high": 5.0} if loss_type == "cispo" else {}
    return settings | (
        {} if ours else {"loss_normalization": "micro_batch", "logprob_policy": "trl"}
    )


def gradient(
    folder: Path | str, loss_type: str, ga: int, spg: int, ours: bool = True, **kwargs: Any
) -> Tensors:
    """Return the gradient of the first step; the output of the training is discarded."""
    with tempfile.TemporaryDirectory() as out, redirect_stdout(StringIO()):
        trainer_class = Exact if ours else Plain
        kwargs = settings_for(loss_type, ours) | kwargs
        return train(folder, out, ga, spg, trainer_class=trainer_class, **kwargs)[1][0][0]


def on_two_ranks(
    folder: Path | str, jobs: list[tuple[str, int, int, bool, float]]
) -> list[Tensors]:
    """Return the gradient of the first step on two gloo processes, for each job.

    A job is a tuple (loss_type, ga, spg, ours, beta).
    """
    with tempfile.TemporaryDirectory() as out:
        launch = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc_per_node",
            "2",
            "--master_port",
            "0",
        ]
        launch += [
            "--rdzv_backend",
            "c10d",
            "--rdzv_endpoint",
            "127.0.0.1:0",
            "-m",
            "benchmarks.invariance",
        ]
        launch += ["--rank_jobs", json.dumps(jobs)]
        root = str(Path(__file__).resolve().parents[1])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
        done = subprocess.run(
            [*launch, "--model", str(folder), "--out", out],
            env=environment,
            capture_output=True,
            text=True,
            timeout=1800,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        return torch.load(Path(out) / "gradients.pt")


def one_of_two_ranks(
    folder: Path | str, jobs: list[tuple[str, int, int, bool, float]], out: Path
) -> None:
    """Run one rank of `on_two_ranks`; the first rank saves the gradients in `out`."""
    keep_order()
    found = [
        gradient(folder, loss, ga, spg, ours, ranks=2, beta=beta)
        for loss, ga, spg, ours, beta in jobs
    ]
    if int(os.environ["RANK"]) == 0:
        torch.save(found, out / "gradients.pt")
    leave_ranks()


def measure(
    folder: Path, losses: tuple[str, ...], cuts: list[tuple[int, int]], two_ranks: bool
) -> list[dict[str, Any]]:
    """Return a row per loss, with the largest differences of ours and TRL, on one and two ranks."""
    table = []
    for loss_type in losses:
        row: dict[str, Any] = {"loss_type": loss_type}
        for ours in (True, False):
            whole = gradient(folder, loss_type, 1, 1, ours)
            one = [apart(gradient(folder, loss_type, ga, spg, ours), whole) for ga, spg in cuts]
            row["ours" if ours else "TRL"] = max(one)
            if two_ranks:
                jobs = [(loss_type, ga, spg, ours, 0.1) for ga, spg in cuts]
                two = []
                for (_, ga, spg, _, _), found in zip(jobs, on_two_ranks(folder, jobs), strict=True):
                    same = gradient(
                        folder, loss_type, 1, 1, ours, numbers=first_of_two_ranks(ga, spg)
                    )
                    two.append(apart(found, same))
                row["ours, 2 ranks" if ours else "TRL, 2 ranks"] = max(two)
        table.append(row)
        print(
            "  ".join(f"{k} {v:.1e}" if isinstance(v, float) else f"{v:8}" for k, v in row.items()),
            flush=True,
        )
    return table


def tiny_model(folder: Path) -> Path:
    """Make an untrained model of 0.1 million parameters, and its tokenizer."""
    from grpo_ext.tasks.countdown import Countdown
    from grpo_ext.tiny.demonstrations import countdown_demonstrations
    from grpo_ext.tiny.model import build_model
    from grpo_ext.tiny.tokenizer import build_tokenizer

    task = Countdown(
        num_problems=200, min_numbers=3, max_numbers=3, max_number=9, operators="+-", max_target=30
    )
    rows = countdown_demonstrations(task, 200)
    tokenizer = build_tokenizer(
        [message["content"] for row in rows for part in row.values() for message in part]
    )
    tokenizer.save_pretrained(folder)
    build_model(tokenizer, hidden_size=64, intermediate_size=128).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two losses, three cuts, one rank")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a difference of ours is above 1e-5"
    )
    parser.add_argument("--out", type=Path, help="write the table as JSON")
    parser.add_argument("--rank_jobs", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore", FutureWarning)
    transformers_logging.disable_progress_bar()
    keep_order()
    if args.rank_jobs:
        return one_of_two_ranks(args.model, args.rank_jobs, args.out)
    with tempfile.TemporaryDirectory() as folder:
        losses, cuts = (
            (("grpo", "dapo"), [(2, 1), (4, 4), (4, 8)]) if args.quick else (LOSSES, CUTS)
        )
        table = measure(tiny_model(Path(folder)), losses, cuts, two_ranks=not args.quick)
    if args.out:
        save(args.out, table)
    worst = max(v for row in table for k, v in row.items() if k.startswith("ours"))
    if args.check and worst > 1e-5:
        sys.exit(f"gradients differ by {worst:.1e}")


if __name__ == "__main__":
    main()
