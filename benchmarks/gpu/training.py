"""Time the training phase of TRL and of ours, which alternate on the same completions.

The cases are the layouts, with and without gradient checkpointing.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.gpu.parts import Mode
from benchmarks.gpu.shapes import SHAPES, Need, make_model, matrix_rate, needed
from benchmarks.gpu.sheet import Sheet
from tests.support.step_bench import Bench, run_step
from tests.support.step_work import UNEVEN, Case

ROW_TOKENS = 16_384  # of our micro-batches: the published runs' rows
GOALS = {"0.5B": 0.20, "1.5B": 0.25, "3B": 0.30}  # share of the rate, forward and backward
# what a share of the rate is expected to be for the tokens that a layout runs, padding included
EFFICIENCY = {
    "TRL": {"0.5B": 0.20, "1.5B": 0.28, "3B": 0.33, "tiny": 0.2},
    "ours": {"0.5B": 0.30, "1.5B": 0.38, "3B": 0.43, "tiny": 0.3},
}
RECOMPUTED = 4 / 3  # of the operations, with checkpointing


@dataclass(frozen=True)
class Way:
    """One way to compute a step."""

    name: str
    side: str  # "TRL" or "ours"
    tokens: str  # the field of `Need` with the tokens that it runs
    layout: str = "auto"
    flash: bool = False


TRL = Way("TRL", "TRL", "padded")
PACKED = Way("ours, packed", "ours", "packed", "packed", True)
CHUNKS = Way("ours, chunks", "ours", "chunks", "chunks")
WAYS = (TRL, Way("ours, padded", "ours", "padded", "padded"), CHUNKS, PACKED)


def run(word: str, mode: Mode, sheet: Sheet) -> None:
    """Measure the shape that `word` names: "0.5B", "1.5B" or "3B".

    "lora" adds an adapter, and "batch" uses the 128 completions of the published run.
    """
    shape, *kinds = word.split()
    batch = "batch" in kinds
    used = "tiny" if mode.dry else shape
    case = work_of(used, mode, batch, "lora" in kinds)
    rate = matrix_rate(mode.device)
    if not sheet.has("matrix rate"):
        sheet.predict(
            "matrix rate",
            *(
                (0.1, "TFLOP/s", "a core of a CPU")
                if mode.dry
                else (750, "TFLOP/s", "an H100, product of 8,192")
            ),
        )
        sheet.measured("matrix rate", rate / 1e12)
    ways = (TRL, CHUNKS, PACKED) if batch else WAYS
    model = make_model(used, mode.device)
    for checkpointing in (False, True):
        measure(
            ways,
            replace(case, settings=(("gradient_checkpointing", checkpointing),)),
            used,
            model,
            mode,
            sheet,
            rate,
        )
    compare(sheet, shape, batch, mode)


def work_of(shape: str, mode: Mode, batch: bool, lora: bool) -> Case:
    """Return the completions: 64 with a mean of 350 tokens or, with `batch`, 128 of about 1,200.

    The lengths have a long tail.
    """
    case = replace(UNEVEN, vocab=SHAPES[shape][1], lora=lora, bound=None)
    if batch:
        case = replace(case, rows=128, completion=(1200, 0.6, 3072), dead=0.0)
    if mode.dry:
        return replace(case, rows=16, prompt=(20, 20), completion=(40, 0.6, 120))
    return replace(case, dtype=torch.bfloat16, on_gpu=True)


def bench_of(way: Way, case: Case, model: Any) -> Bench:
    """Return a trainer that is ready to step."""
    settings = case.settings
    rows = case.micro_batch
    if way.side == "ours":
        settings = (*settings, ("layout", way.layout))
        if way.layout != "padded":  # cut by tokens instead of by rows
            settings = (*settings, ("max_tokens_per_micro_batch", ROW_TOKENS))
            rows = case.rows
    return Bench(
        replace(case, settings=settings, micro_batch=rows, flash=way.flash),
        (way.side,),
        model=model,
    )


def measure(
    ways: tuple[Way, ...], case: Case, shape: str, model: Any, mode: Mode, sheet: Sheet, rate: float
) -> None:
    """Predict and measure each way; the ways alternate."""
    need = needed(shape, case)
    checkpointing = dict(case.settings)["gradient_checkpointing"]
    title = ", checkpointing" if checkpointing else ""
    names = {f"{way.name}{title}": way for way in ways}
    if all(sheet.has(f"{name}: seconds a step") for name in names):
        return
    benches: dict[str, Bench] = {}
    for name, way in names.items():
        factor = RECOMPUTED if checkpointing else 1.0
        efficiency = EFFICIENCY[way.side][shape]
        run_operations = need.operations * getattr(need, way.tokens) / need.chunks
        formula = (
            f"{run_operations:.3g} operations with padding x {factor:.3g} "
            f"/ ({efficiency} x {rate:.3g})"
        )
        sheet.predict(
            f"{name}: seconds a step", run_operations * factor / (efficiency * rate), "s", formula
        )
        benches[name] = bench_of(way, case, model)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    peaks = dict.fromkeys(names, 0.0)
    gradients = {}
    order = list(names)
    for number in range(1 + mode.size(3, 1, 1)):
        for name in order if number % 2 else order[::-1]:
            if name not in benches:
                continue
            try:
                taken, peak, gradient = step(
                    benches[name], names[name].side, mode, number == 0 and not checkpointing
                )
            except torch.OutOfMemoryError:
                del benches[name]
                free(mode)
                sheet.fact(f"{name}: memory", "not enough")
                continue
            if gradient is not None:
                gradients[name] = gradient
            if number:  # the first warms up
                seconds[name].append(taken)
                peaks[name] = max(peaks[name], peak)
    for name, bench in benches.items():
        write_down(
            sheet,
            name,
            bench,
            names[name],
            statistics.median(seconds[name]),
            peaks[name],
            need,
            rate,
        )
    if "TRL" in gradients:
        theirs = gradients.pop("TRL")
        for name, gradient in gradients.items():
            sheet.fact(
                f"{name}: gradient against TRL's", float((gradient - theirs).norm() / theirs.norm())
            )
    benches.clear()
    free(mode)


def free(mode: Mode) -> None:
    """Free the memory of trainers that are no longer used but refer to each other."""
    gc.collect()
    if not mode.dry:
        torch.cuda.empty_cache()


def step(
    bench: Bench, side: str, mode: Mode, with_gradient: bool
) -> tuple[float, float, torch.Tensor | None]:
    """Return the seconds of a step, the GiB that it needs in addition, and its gradient on the CPU.

    The gradient is `None` unless `with_gradient`.
    """
    trainer = bench.trainers[side]
    held = 0
    trainer.model.zero_grad(set_to_none=True)
    bench.tokens[side] = 0
    if not mode.dry:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    try:
        taken = run_step(trainer, bench.batches[side])
        peak = 0.0 if mode.dry else (torch.cuda.max_memory_allocated() - held) / 2**30
        trained = [
            p.grad for p in trainer.model.parameters() if p.requires_grad and p.grad is not None
        ]
        gradient = (
            torch.cat([g.flatten().float().cpu() for g in trained]) if with_gradient else None
        )
    finally:
        trainer.model.zero_grad(set_to_none=True)
    return taken, peak, gradient


def write_down(
    sheet: Sheet,
    name: str,
    bench: Bench,
    way: Way,
    taken: float,
    peak: float,
    need: Need,
    rate: float,
) -> None:
    """Record the rows of one way."""
    weights = (
        sum(p.numel() * p.element_size() for p in bench.trainers[way.side].model.parameters())
        / 2**30
    )
    share = need.operations / taken / rate
    sheet.measured(f"{name}: seconds a step", taken, tokens=bench.tokens[way.side])
    sheet.fact(f"{name}: completion tokens a second", need.completion_tokens / taken)
    sheet.fact(f"{name}: share of the rate", share)
    if peak:  # a CPU's is not known
        sheet.fact(f"{name}: memory", peak + weights, "GiB")


def compare(sheet: Sheet, shape: str, batch: bool, mode: Mode) -> None:
    """Compare ours with TRL and with the goals.

    In each case, the faster of our layouts with the same checkpointing counts.
    """
    rows = sheet.data["rows"]

    def of(prefix: str, what: str) -> dict[str, float]:
        ends = f": {what}"
        found = {
            k.removesuffix(ends): row["measured"]
            for k, row in rows.items()
            if k.startswith(prefix) and k.endswith(ends)
        }
        return {k: v for k, v in found.items() if isinstance(v, float)}

    if not (ours := of("ours", "share of the rate")):
        raise RuntimeError("none of ours was measured")
    goal = GOALS[shape]
    sheet.predict(
        "share of the rate, the best of ours",
        goal,
        "",
        "the goal",
        None if mode.dry else (">=", goal),
    )
    sheet.measured("share of the rate, the best of ours", max(ours.values()))
    for title in ("", ", checkpointing"):
        theirs = of("TRL", "completion tokens a second").get(f"TRL{title}")
        mine = [
            v
            for k, v in of("ours", "completion tokens a second").items()
            if k.endswith("checkpointing") == bool(title)
        ]
        if theirs is None or not mine:
            continue
        what = f"times TRL's tokens a second, the best of ours{title}"
        sheet.predict(
            what,
            3.0,
            "",
            "no padding, no dead row, prompts once",
            None if mode.dry or not batch else (">=", 3.0),
        )
        sheet.measured(what, max(mine) / theirs)
        fastest = max(mine)
        name = next(k for k, v in of("ours", "completion tokens a second").items() if v == fastest)
        memory = of("ours", "memory").get(name)
        least = of("TRL", "memory").get(f"TRL{title}")
        if memory and least:
            what = f"memory of the fastest of ours, as a share of TRL's{title}"
            sheet.predict(
                what, 1.0, "", "16,384 tokens a micro-batch against 8 padded rows", ("<=", 1.0)
            )
            sheet.measured(what, memory / least)
