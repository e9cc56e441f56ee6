"""How long the training phase of an optimizer step takes, ours beside plain TRL's, on the same completions.

    python benchmarks/step.py [--quick] [--check] [--case NAME ...] [--ranks 2] [--out FILE]
    python benchmarks/step.py --growth PLOT.png
    python benchmarks/step.py --memory

The training phase is everything but sampling: rewards, advantages, old and reference log-probs, the loss and its gradient. The
same completions go through TRL and through ours in turn, in one process. For each case: median seconds of both, the median
ratio, tokens run through the model, the largest relative difference of the gradient, and the seconds that a lower bound would
take: each distinct prompt and each completion that can change the gradient once, without padding, at the rate of this machine's
matrix products. `--check` exits with 1 where a ratio is under its bound or gradients differ by more than 1e-5.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from step_work import CASES, UNEVEN, Case, FixedCompletions, make_trainer, make_work

SIDES = ("TRL", "ours")


def run_step(trainer: FixedCompletions, batches: Any) -> float:
    """One optimizer step without its update (several, where a generation is used more than once); returns seconds."""
    model, steps = trainer.model_wrapped, trainer.args.gradient_accumulation_steps
    trainer.current_gradient_accumulation_steps = steps
    model.zero_grad(set_to_none=True)
    start = time.perf_counter()
    for _ in range(trainer.num_iterations):
        samples, num_items = trainer.get_batch_samples(batches, steps, trainer.args.device)
        for i, inputs in enumerate(samples):
            trainer.accelerator.gradient_state._set_sync_gradients(i == len(samples) - 1)
            trainer.training_step(model, inputs, num_items)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


class Bench:
    """Both trainers of a case, ready to step."""

    def __init__(self, case: Case, sides: tuple[str, ...] = SIDES, ranks: int = 1, model: Any = None):
        self.folder = tempfile.TemporaryDirectory()
        self.trainers = {side: make_trainer(side, case, self.folder.name, ranks, model) for side in sides}
        self.batches, self.tokens = {}, dict.fromkeys(sides, 0)
        for side, trainer in self.trainers.items():
            trainer.model.train()
            trainer.create_optimizer()
            trainer.model_wrapped = trainer.accelerator.prepare(trainer.model)
            self.batches[side] = itertools.cycle(trainer.get_train_dataloader())
            backbone = trainer.accelerator.unwrap_model(trainer.model).base_model  # of an adapter: the tuner
            backbone = getattr(backbone, "model", backbone)
            getattr(backbone, "model", backbone).register_forward_pre_hook(self._counter(side), with_kwargs=True)

    def _counter(self, side: str) -> Any:
        def count(module, args, kwargs):
            self.tokens[side] += kwargs["input_ids"].numel()

        return count

    def step(self, side: str) -> tuple[float, int, torch.Tensor]:
        """Seconds, tokens and the gradient, one vector."""
        self.tokens[side] = 0
        seconds = run_step(self.trainers[side], self.batches[side])
        grads = [p.grad for p in self.trainers[side].model.parameters() if p.requires_grad]
        return seconds, self.tokens[side], torch.cat([g.flatten() for g in grads])


def measure(case: Case, rounds: int, ranks: int = 1) -> dict[str, Any]:
    """One row of the table."""
    bench = Bench(case, ranks=ranks)
    seconds, tokens, grads = {side: [] for side in SIDES}, {}, {}
    for number in range(rounds + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            taken, tokens[side], grads[side] = bench.step(side)
            if number:  # the first warms up
                seconds[side].append(taken)
    scale = grads["TRL"].abs().max()
    return {
        **{f"{side} s": statistics.median(seconds[side]) for side in SIDES},
        "ratio": statistics.median(a / b for a, b in zip(seconds["TRL"], seconds["ours"], strict=True)),
        **{f"{side} tokens": tokens[side] for side in SIDES},
        "gradient": float((grads["ours"] - grads["TRL"]).abs().max() / scale),
        "bound s": lower_bound(case),
        "asked": case.bound,
    }


def lower_bound(case: Case) -> float:
    """Seconds for the products alone: 6 operations a weight and token, prompts once, completions that can matter once."""
    work = make_work(case)
    groups = [range(n * case.group, (n + 1) * case.group) for n in range(len(work.prompts))]
    beta = dict(case.settings).get("beta", 0.0)
    live = [n for n, rows in enumerate(groups) if beta or len({work.rewards[i] for i in rows}) > 1]
    completion = sum(len(work.completions[i]) for n in live for i in groups[n])
    prompt = sum(len(work.prompts[n]) for n in live)
    layer = 4 * case.hidden**2 + 9 * case.hidden**2
    flops = 6 * (case.layers * layer * (prompt + completion) + case.hidden * case.vocab * completion)
    passes = dict(case.settings).get("num_iterations", 1) + (1 / 3 if beta else 0)
    return passes * flops / matrix_rate()


def matrix_rate(size: int = 1024) -> float:
    """Operations a second of a float32 matrix product on this machine."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = min(_timed(lambda: a @ b) for _ in range(10))
    return 2 * size**3 / best


def _timed(function: Any) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def table(cases: dict[str, Case], rounds: int) -> dict[str, dict[str, Any]]:
    """A row a case, printed as they come."""
    rows = {}
    for name, case in cases.items():
        row = rows[name] = measure(case, rounds)
        verdict = "" if row["asked"] is None else f"  (asked {row['asked']:g}: {'ok' if passes(row) else 'MISSED'})"
        print(
            f"{name:26} TRL {row['TRL s']:7.2f} s  ours {row['ours s']:6.2f} s  {row['ratio']:5.2f} x  tokens "
            f"{row['TRL tokens']:7} {row['ours tokens']:7}  gradient {row['gradient']:.0e}  bound "
            f"{row['bound s']:.2f} s{verdict}",
            flush=True,
        )
    return rows


def passes(row: dict[str, Any]) -> bool:
    """Whether a row keeps its bounds."""
    return row["gradient"] <= 1e-5 and (row["asked"] is None or row["ratio"] >= row["asked"])


def growth(path: Path, rounds: int) -> dict[str, list[Any]]:
    """Seconds against completion length and group size, as a plot and a table."""
    import matplotlib.pyplot as plt

    small = replace(UNEVEN, rows=16, vocab=2000, layers=2)
    lengths = {n: replace(small, completion=(n / 2.5, 0.6, n)) for n in (128, 256, 512, 1024, 2048, 4096)}
    sizes = {g: replace(small, rows=64, group=g, completion=(100, 0.6, 256)) for g in (4, 8, 16, 32, 64)}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    found = {}
    for axis, label, cases in zip(axes, ("longest completion", "num_generations"), (lengths, sizes), strict=True):
        rows = {str(n): measure(case, rounds) for n, case in cases.items()}
        for side in SIDES:
            axis.loglog(list(cases), [row[f"{side} s"] for row in rows.values()], "o-", label=side)
        axis.set(xlabel=label, ylabel="seconds a step", xticks=list(cases), xticklabels=list(cases))
        axis.minorticks_off()
        axis.legend()
        found[label] = {n: {k: row[k] for k in ("TRL s", "ours s", "ratio")} for n, row in rows.items()}
        for n, row in rows.items():
            print(
                f"{label} {n:>5}: TRL {row['TRL s']:.2f} s, ours {row['ours s']:.2f} s, {row['ratio']:.2f} x",
                flush=True,
            )
    figure.savefig(path, dpi=120)
    return found


def peak_of(name: str, side: str) -> int:
    """Bytes of memory that two steps need at most, above what the process held before them."""
    bench = Bench(CASES[name], (side,))
    held = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    for _ in range(2):
        bench.step(side)
    return (status("VmHWM") - held) * 1024


def status(name: str) -> int:
    """A figure that the system keeps of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def memory(names: list[str]) -> dict[str, dict[str, int]]:
    """Peak memory of each case and side, each in a process of its own; freed memory goes back to the system at once."""
    found = {}
    for name in names:
        found[name] = {}
        for side in SIDES:
            command = [sys.executable, __file__, "--peak_of", name, side]
            environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            found[name][side] = int(done.stdout.split()[-1])
        print(
            f"{name:26}" + "".join(f"  {side} {peak / 2**20:6.0f} MiB" for side, peak in found[name].items()),
            flush=True,
        )
    return found


def on_two_ranks(names: list[str], rounds: int) -> None:
    """The table on two processes, printed by the first."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--rdzv_backend", "c10d"]
    command += ["--rdzv_endpoint", "127.0.0.1:0", __file__, "--rank_cases", json.dumps(names), "--rounds", str(rounds)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the cases with a bound, two rounds")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is missed")
    parser.add_argument("--case", nargs="+", choices=list(CASES), metavar="NAME", help=f"some of: {', '.join(CASES)}")
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2))
    parser.add_argument("--rounds", type=int, help="counted runs of each side")
    parser.add_argument("--growth", type=Path, metavar="PLOT", help="how seconds grow with length and group size")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--peak_of", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rank_cases", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    if args.peak_of:
        return print(peak_of(*args.peak_of))
    rounds = args.rounds or (2 if args.quick else 5)
    names = args.case or [name for name, case in CASES.items() if case.bound or not args.quick]
    if args.rank_cases:
        for name in args.rank_cases:
            row = measure(CASES[name], rounds, ranks=2)
            if os.environ["RANK"] == "0":
                print(
                    f"{name:26} 2 ranks  TRL {row['TRL s']:.2f} s  ours {row['ours s']:.2f} s  {row['ratio']:.2f} x  "
                    f"gradient {row['gradient']:.0e}",
                    flush=True,
                )
        return None
    if args.ranks == 2:
        return on_two_ranks(names, rounds)
    if args.growth:
        found = growth(args.growth, rounds)
    else:
        found = memory(names) if args.memory else table({name: CASES[name] for name in names}, rounds)
    if args.out:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__}
        machine = {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            **versions,
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"machine": machine, "rows": found}, indent=1) + "\n")
    if args.check:
        bad = [name for name, row in found.items() if (row["ours"] > row["TRL"] if args.memory else not passes(row))]
        if bad:
            sys.exit(f"missed: {', '.join(bad)}")
    return None


if __name__ == "__main__":
    main()
