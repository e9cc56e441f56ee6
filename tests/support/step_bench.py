"""One step of TRL's and of ours on the same completions.

Seconds, tokens, gradient, peak memory, and a profile.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tests.support.step_work import CASES, Case, FixedCompletions, make_trainer, make_work

SIDES = ("TRL", "ours")


def now(trainer: FixedCompletions) -> float:
    """Return processor time if one process works alone, so that other processes have little effect,
    in seconds.
    """
    alone = (
        trainer.accelerator.num_processes == 1
        and not torch.cuda.is_available()
        and torch.get_num_threads() == 1
    )
    return time.process_time() if alone else time.perf_counter()


def run_step(trainer: FixedCompletions, batches: Any) -> float:
    """Run one optimizer step without its update (several, if a generation is used repeatedly).

    Return seconds.
    """
    model = trainer.model_wrapped
    steps = trainer.args.gradient_accumulation_steps
    trainer.current_gradient_accumulation_steps = steps
    model.zero_grad(set_to_none=True)
    start = now(trainer)
    for _ in range(trainer.num_iterations):
        samples, num_items = trainer.get_batch_samples(batches, steps, trainer.args.device)
        for i, inputs in enumerate(samples):
            trainer.accelerator.gradient_state._set_sync_gradients(i == len(samples) - 1)
            trainer.training_step(model, inputs, num_items)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return now(trainer) - start


class Bench:
    """Both trainers of a case, ready to step."""

    def __init__(
        self, case: Case, sides: tuple[str, ...] = SIDES, ranks: int = 1, model: Any = None
    ):
        self.folder = tempfile.TemporaryDirectory()
        self.trainers = {
            side: make_trainer(side, case, self.folder.name, ranks, model) for side in sides
        }
        self.batches, self.tokens = {}, dict.fromkeys(sides, 0)
        for side, trainer in self.trainers.items():
            trainer.model.train()
            trainer.create_optimizer()
            trainer.model_wrapped = trainer.accelerator.prepare(trainer.model)
            self.batches[side] = itertools.cycle(trainer.get_train_dataloader())
            backbone = trainer.accelerator.unwrap_model(
                trainer.model
            ).base_model  # of an adapter: the tuner
            backbone = getattr(backbone, "model", backbone)
            getattr(backbone, "model", backbone).register_forward_pre_hook(
                self._counter(side), with_kwargs=True
            )

    def _counter(self, side: str) -> Any:
        def count(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            self.tokens[side] += kwargs["input_ids"].numel()

        return count

    def step(self, side: str) -> tuple[float, int, torch.Tensor]:
        """Return seconds, tokens and the gradient as one vector."""
        self.tokens[side] = 0
        seconds = run_step(self.trainers[side], self.batches[side])
        grads = [p.grad for p in self.trainers[side].model.parameters() if p.requires_grad]
        return seconds, self.tokens[side], torch.cat([g.flatten() for g in grads])


def measure(case: Case, rounds: int, ranks: int = 1) -> dict[str, Any]:
    """Return one row of the table."""
    bench = Bench(case, ranks=ranks)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    tokens = {}
    grads = {}
    for number in range(rounds + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            taken, tokens[side], grads[side] = bench.step(side)
            if number:  # the first warms up
                seconds[side].append(taken)
    scale = grads["TRL"].abs().max()
    bound = lower_bound(case) / ranks
    return {
        **{f"{side} s": statistics.median(seconds[side]) for side in SIDES},
        "ratio": statistics.median(
            a / b for a, b in zip(seconds["TRL"], seconds["ours"], strict=True)
        ),
        **{f"{side} tokens": tokens[side] for side in SIDES},
        "gradient": float((grads["ours"] - grads["TRL"]).abs().max() / scale),
        "bound s": bound,
        "times the bound": min(seconds["ours"])
        / bound,  # of our fastest run: others on the machine only add time
        "asked": case.bound,
        "at most": case.most if ranks == 1 else None,
        "tolerance": case.tolerance,
    }


def lower_bound(case: Case) -> float:
    """Return the seconds of the matrix products that every way of computing the gradient needs,
    without attention.

    6 operations a weight and token (4 where only an adapter is trained), each prompt once, each
    completion that can change the gradient once and without padding, the head only at completions;
    2 more for the reference.
    """
    work = make_work(case)
    settings = dict(case.settings)
    groups = [range(n * case.group, (n + 1) * case.group) for n in range(len(work.prompts))]
    beta = settings.get("beta", 0.0)
    live = [n for n, rows in enumerate(groups) if beta or len({work.rewards[i] for i in rows}) > 1]
    completion = sum(len(work.completions[i]) for n in live for i in groups[n])
    prompt = sum(len(work.prompts[n]) for n in live)
    layer = case.layer_weights or 4 * case.hidden**2 + 9 * case.hidden**2
    weights = case.layers * layer * (prompt + completion) + case.hidden * case.vocab * completion
    operations = settings.get("num_iterations", 1) * (4 if case.lora else 6) + (2 if beta else 0)
    return operations * weights / matrix_rate(case.hidden, case.dtype)


@cache
def matrix_rate(hidden: int, dtype: torch.dtype = torch.float32) -> float:
    """Return the operations per second of a product of 1,024 tokens with a layer of this width, the
    fastest of many.

    Narrow products are slower than square ones, by how much depends on the processor.
    """
    a = torch.randn(1024, hidden, dtype=dtype)
    b = torch.randn(hidden, 3 * hidden, dtype=dtype)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = float("inf")
    for _ in range(50):
        start = clock()
        a @ b
        best = min(best, clock() - start)
    return 2 * 1024 * 3 * hidden**2 / best


def passes(row: dict[str, Any]) -> bool:
    """Whether a row keeps its bounds."""
    enough = row["asked"] is None or row["ratio"] >= row["asked"]
    enough = enough and (row.get("at most") is None or row["times the bound"] <= row["at most"])
    exact = row["gradient"] <= row.get("tolerance", 1e-5)
    return enough and exact and row.get("ours MiB", 0) <= row.get("TRL MiB", 0)


def peak_of(name: str, side: str) -> float:
    """Return the most memory that a step needs above that of the process before it, in MiB."""
    bench = Bench(CASES[name], (side,))
    held = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    bench.step(side)
    return (status("VmHWM") - held) / 1024


def status(name: str) -> int:
    """Return a figure that the system keeps of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


KINDS = {  # parts of an operator's name
    "matrix products": ("::mm", "::addmm", "::bmm", "::baddbmm"),
    "attention": ("scaled_dot_product", "flash_attention"),
    "copies": ("copy_", "::cat", "::index", "::gather", "::fill_", "::zero_", "embedding"),
}
HEADS = (
    "_LogProb",
    "ChunkedLogProb",
)  # ours and TRL's; the names of their backward passes begin the same


def where_time_goes(case: Case, side: str) -> dict[str, float]:
    """Return shares of a step's time by kind of operator, and that of the scoring head, which has
    several kinds.
    """
    bench = Bench(case, (side,))
    bench.step(side)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        start = time.perf_counter()  # the profiler also measures wall-clock time
        bench.step(side)
        seconds = time.perf_counter() - start
    shares = dict.fromkeys((*KINDS, "other operators"), 0.0)
    head = 0.0
    for event in seen.key_averages():
        kind = next(
            (kind for kind, parts in KINDS.items() if any(p in event.key for p in parts)),
            "other operators",
        )
        shares[kind] += event.self_cpu_time_total / 1e6 / seconds
        if event.key.startswith(HEADS):
            head += event.cpu_time_total / 1e6 / seconds
    if not head:
        raise RuntimeError(
            f"No operator's name begins with one of {HEADS}: the scoring head has another name now."
        )
    return {
        **shares,
        "outside operators": 1 - sum(shares.values()),
        "of all, the scoring head": head,
    }
