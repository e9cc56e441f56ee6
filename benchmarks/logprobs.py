"""How far are the trainer's log-probs from those that the sampler used, for ours and for TRL?

    python -m benchmarks.logprobs [--quick] [--check] [--tokens 20000] [--out FILE]
    python -m benchmarks.logprobs --memory
    python -m benchmarks.logprobs --recorder [--check]

A tiny model samples through transformers' `generate` at every temperature, top_k, top_p and min_p
of the grid. For each setting, the figures are the largest difference in the log-prob of a sampled
token, and the mean importance ratio (trainer over sampler, 1 if exact) with its standard error.
`--check` exits with 1 if one of our differences is above 1e-4, or if the 95 % interval of a mean
ratio misses 1 by more than 1e-6. `--memory` prints the peak memory of scoring 1,024 positions,
forward and backward, with each side in a separate process. `--recorder` prints the share of a step
of the Countdown demo that is spent on recording the sampler's log-probs and, with truncation, the
kept tokens. There, `--check` exits with 1 if recording log-probs without truncation takes more than
2 %.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.invariance import tiny_model
from benchmarks.recorded import save
from grpo_ext import GRPOExtTrainer
from grpo_ext.common.estimates import mean_difference
from grpo_ext.objective.recorder import Recorder
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.step.records import Scored
from tests.support.fixed_completions import Config, lucky

GRID = [
    {"temperature": t, "top_k": k, "top_p": p, "min_p": m}
    for t, k, p, m in itertools.product(
        (0.3, 0.7, 1.0, 1.5), (0, 1, 5, 50), (1.0, 0.9, 0.5), (None, 0.1)
    )
]
QUICK = [GRID[i] for i in (0, 13, 25, 39, 50, 64, 77, 95)]


def make_trainer(
    folder: Path,
    out: str,
    rows: int = 32,
    length: int = 48,
    sharpness: float = 6.0,
    **settings: Any,
) -> GRPOExtTrainer:
    """Make a trainer that samples `rows` completions per generation.

    `sharpness` scales the untrained model's logits.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.model.norm.weight.data.mul_(sharpness)
    return GRPOExtTrainer(
        model=model,
        reward_funcs=[lucky],
        args=Config(
            output_dir=out,
            per_device_train_batch_size=rows,
            num_generations=8,
            max_completion_length=length,
            report_to="none",
            use_cpu=True,
            bf16=False,
            **settings,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": f"Use {a}, {a + 1}, 3 to make {a + 4}."} for a in range(1, 9)]
        ),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
    )


def score(trainer: GRPOExtTrainer, batch: Scored) -> torch.Tensor:
    """Return log-probs of the sampled tokens (B, T)."""
    with torch.no_grad():
        return trainer.parts.scorer.score(trainer.model, batch).logps


def differences(trainer: GRPOExtTrainer, num_tokens: int) -> dict[str, torch.Tensor]:
    """Return the trainer's minus the sampler's log-probs, for ours and for TRL.

    Each tensor is (tokens,), with at least `num_tokens` sampled tokens.
    """
    trainer.model.train()
    scorer = trainer.parts.scorer
    rows = trainer.args.per_device_train_batch_size
    found: dict[str, list[torch.Tensor]] = {"ours": [], "TRL": []}
    dataset: Any = trainer.train_dataset
    inputs = [dataset[i // 8 % 8] for i in range(rows)]
    sampling = scorer.params
    while sum(map(len, found["ours"])) < num_tokens:
        batch = trainer.parts.rollout(list(map(dict, inputs)))
        mask = batch.completion_mask.bool()
        sampled = batch.sampling_per_token_logps
        assert sampled is not None
        found["ours"].append((score(trainer, batch) - sampled)[mask])
        scorer.params = SamplingParams(trainer.temperature)  # TRL only uses the temperature
        found["TRL"].append((score(trainer, batch) - sampled)[mask])
        scorer.params = sampling
    return {name: torch.cat(parts).double() for name, parts in found.items()}


def figures(difference: torch.Tensor) -> dict[str, float]:
    """Return the largest difference, and the mean importance ratio with error and 95 % interval."""
    ratio = mean_difference([1.0] * len(difference), difference.exp().tolist())
    assert ratio is not None and ratio.low is not None and ratio.high is not None
    return {
        "largest": float(difference.abs().max()),
        "ratio": 1 + ratio.mean,
        "error": ratio.error or 0.0,
        "low": 1 + ratio.low,
        "high": 1 + ratio.high,
    }


def exact(row: dict[str, Any]) -> bool:
    """Return whether the figures of ours in a row are within their bounds."""
    ours = row["ours"]
    return ours["largest"] <= 1e-4 and ours["low"] - 1e-6 <= 1 <= ours["high"] + 1e-6


def measure(folder: Path, grid: list[dict[str, Any]], num_tokens: int) -> list[dict[str, Any]]:
    """Return one row per setting."""
    table = []
    for settings in grid:
        with tempfile.TemporaryDirectory() as out:
            rows = 256 if num_tokens > 5000 else 32
            found = differences(make_trainer(folder, out, rows, **settings), num_tokens)
        row = {
            **settings,
            "tokens": len(found["ours"]),
            **{name: figures(d) for name, d in found.items()},
        }
        table.append(row)
        words = [f"{k}={v}" for k, v in settings.items() if v is not None]
        sides = [
            f"{n}: {row[n]['largest']:.1e}, ratio {row[n]['ratio']:.6f}" for n in ("ours", "TRL")
        ]
        print(f"{' '.join(words):45} {row['tokens']:6} tokens  " + "   ".join(sides), flush=True)
    return table


def score_once(side: str, vocab: int, positions: int = 1024, width: int = 256) -> None:
    """Score with one of the two heads, forward and backward; print the peak memory in bytes."""
    from trl.kernels import ChunkedLogProbFunction

    from grpo_ext.objective.logprob import sampling_log_probs

    hidden = torch.randn(positions, width, requires_grad=True)
    weight = torch.randn(vocab, width, requires_grad=True)
    targets = torch.arange(positions) % vocab
    if side == "TRL":
        logps = ChunkedLogProbFunction.apply(
            hidden, weight, None, targets, 0.7, 32768, None, 1.0, ("entropy",)
        )[0]
    elif side == "ours":
        logps = sampling_log_probs(
            hidden, weight, None, targets, SamplingParams(0.7, 50, 0.9, 0.1)
        )[0]
    else:
        logps = hidden.sum(-1) + weight.sum()
    logps.sum().backward()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def memory() -> None:
    """Print the peak memory of the two heads beyond that of the tensors and gradients alone."""
    for vocab in (32_000, 151_936):
        peaks = {}
        for side in ("neither", "TRL", "ours"):
            command = [
                sys.executable,
                "-m",
                "benchmarks.logprobs",
                "--score_once",
                side,
                str(vocab),
            ]
            peaks[side] = int(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[
                    -1
                ]
            )
        above = {side: (peak - peaks["neither"]) / 2**20 for side, peak in peaks.items()}
        whole = " ".join(f"{side} {peak / 2**20:.0f} MiB" for side, peak in peaks.items())
        print(
            f"vocabulary {vocab}: ours {above['ours']:.0f} MiB above neither, TRL "
            f"{above['TRL']:.0f} MiB ({whole})"
        )


def recorder_cost(model: Path, steps: int = 6) -> dict[str, float]:
    """Return the recorder's share of a step's time, for plain and for truncated sampling."""
    from benchmarks.countdown_runs import recipe_for, train

    found = {}
    for name, settings in (("plain", {}), ("truncated", {"top_k": 20, "top_p": 0.9})):
        with tempfile.TemporaryDirectory() as out, timed_recorder() as seconds:
            start = time.process_time()
            train("ours", recipe_for(model, out, max_steps=steps, **settings))
            found[name] = sum(seconds) / (time.process_time() - start)
    return found


@contextmanager
def timed_recorder() -> Iterator[list[float]]:
    """Record the processor time of each call of the recorder."""
    seconds: list[float] = []
    originals: dict[str, Callable[..., Any]] = {
        "__call__": Recorder.__call__,
        "rows": Recorder.rows,
    }

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.process_time()
            result = method(*args)
            seconds.append(time.process_time() - start)
            return result

        return call

    for name, method in originals.items():
        setattr(Recorder, name, timed(method))
    try:
        yield seconds
    finally:
        for name, method in originals.items():
            setattr(Recorder, name, method)


def recorder(model: Path | None, check: bool) -> None:
    """Print the recorder's cost."""
    from benchmarks.countdown_runs import warm_start

    with tempfile.TemporaryDirectory() as folder:
        found = recorder_cost(model or warm_start(Path(folder)))
    print(
        "the recorder's share of a step: "
        + ", ".join(f"{name} {share:.2%}" for name, share in found.items())
    )
    if check and found["plain"] > 0.02:
        sys.exit("above 2 %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="eight settings of the grid, 1,000 tokens each"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if ours is not exact")
    parser.add_argument("--tokens", type=int, default=20_000, help="at least so many a setting")
    parser.add_argument("--out", type=Path, help="write the table as JSON")
    parser.add_argument("--memory", action="store_true", help="the table of peak memory instead")
    parser.add_argument(
        "--model", type=Path, help="a model that `countdown_runs.warm_start` made, for --recorder"
    )
    parser.add_argument(
        "--recorder", action="store_true", help="what noting the sampler's log-probs costs instead"
    )
    parser.add_argument("--score_once", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.score_once:
        return score_once(args.score_once[0], int(args.score_once[1]))
    if args.memory:
        return memory()
    logging.disable(logging.WARNING)
    if args.recorder:
        return recorder(args.model, args.check)
    with tempfile.TemporaryDirectory() as folder:
        grid, tokens = (QUICK, 1000) if args.quick else (GRID, args.tokens)
        table = measure(tiny_model(Path(folder)), grid, tokens)
    if args.out:
        save(args.out, table)
    for name in ("ours", "TRL"):
        ratios = [row[name]["ratio"] for row in table]
        largest = max(row[name]["largest"] for row in table)
        print(
            f"{name}: largest difference {largest:.1e}; mean ratio {min(ratios):.6f} to "
            f"{max(ratios):.6f}"
        )
    print(f"{sum(row['tokens'] for row in table)} tokens in {len(table)} settings")
    failed = [row for row in table if not exact(row)]
    if args.check and failed:
        sys.exit(f"not exact: {failed}")


if __name__ == "__main__":
    main()
