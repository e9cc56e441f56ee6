"""Where the speeds of `placements` come from: the log of a run of the same recipe, or the data sheet of a card.

By data sheet a decoding step reads all weights, and for each row its keys and values, with 2 operations per weight. Training
takes 6 operations per trained weight and token, 4 per frozen one, and 2 each for policy and reference to score; attention is
left out, and all experts count.
"""

from itertools import pairwise
from statistics import median

import numpy as np

from grpo_ext.observe.read_run import read_run
from grpo_ext.preflight.forecast import Forecast
from grpo_ext.preflight.placements import (
    Placement,
    Speeds,
    Workload,
    drawn_lengths,
    simulate,
    training_seconds,
)
from grpo_ext.recipe.memory import weight_bytes
from grpo_ext.recipe.rules import Values

CARDS = {  # by data sheet: dense bfloat16 operations per second, memory bytes per second, memory bytes; vLLM's max_num_seqs
    "4090": (165e12, 1.01e12, 24e9, 256), "a100": (312e12, 2.04e12, 80e9, 256), "h20": (148e12, 4.0e12, 96e9, 1024),
    "h100": (989e12, 3.35e12, 80e9, 1024), "h200": (989e12, 4.8e12, 141e9, 1024), "b200": (2250e12, 7.7e12, 180e9, 1024),
}  # fmt: skip
READ, COMPUTE, USED, MEAN_SHARE = (
    0.7,
    0.3,
    0.9,
    0.4,
)  # of bandwidth, rate, memory; mean length of max_completion_length
STARTING, LINK = (
    3e-3,
    10e9,
)  # seconds of a decoding step beside the reading; bytes per second from trainer to engine
GENERATION, MEAN, LONGEST = LOGGED = (
    "sampling/generation_time",
    "completions/mean_length",
    "completions/max_length",
)


def compared(
    v: Values, forecast: Forecast, gpus: int | None, card: str | None, folder: str | None
) -> list[Placement]:
    """Return the placements of so many GPUs, the fastest first, by a card or by a run; `ValueError` if not by exactly one."""
    if not gpus or bool(card) == bool(folder):
        raise ValueError("Placements need --gpus N, and --gpu CARD or --run FOLDER.")
    return simulate(
        *(by_card(card, v, forecast) if card else by_run(folder or "", v, forecast)), gpus
    )


def by_card(
    card: str, v: Values, forecast: Forecast, mean: float | None = None
) -> tuple[Workload, Speeds]:
    """Return the workload of a recipe and an estimate of its speeds; `ValueError` if what it needs is not known."""
    size, batch, limit, tp = (
        forecast.size,
        forecast.plan.batch,
        v["max_completion_length"],
        v["vllm_tensor_parallel_size"],
    )
    if card not in CARDS or size is None or limit is None:
        raise ValueError(
            f"--gpu needs one of {', '.join(CARDS)}, max_completion_length, and a model's config that is here."
        )
    rate, bandwidth, memory, slots = CARDS[card]
    lengths, prompt = (
        drawn_lengths(batch.completions, mean or MEAN_SHARE * limit, limit),
        forecast.prompt_tokens or 0.0,
    )
    context = prompt + sum(n * n for n in lengths) / sum(lengths) / 2  # of the mean token
    weights, cache = (
        size.parameters * weight_bytes(size, v),
        4 * size.num_hidden_layers * size.kv_width * context,
    )
    if (room := int((USED * memory * tp - weights) / cache)) < 1:
        raise ValueError(
            f"The model does not fit on {tp} x {card}: raise vllm_tensor_parallel_size."
        )
    passes = (4 * size.parameters + 2 * size.trainable) * v[
        "num_iterations"
    ] + 2 * size.parameters * (2 if v["beta"] else 1)
    step, row = (
        weights / (READ * bandwidth),
        cache / (READ * bandwidth) + 2 * size.parameters / (COMPUTE * rate),
    )
    adapter = v["use_peft"] and v["vllm_sync_adapter"] == "adapter"  # sent in float32
    sync, switch = (4 * size.trainable if adapter else weights) / LINK, 2 * weights / LINK
    speeds = Speeds(
        STARTING + step / tp,
        row / tp,
        passes / (COMPUTE * rate),
        0,
        0,
        sync,
        switch,
        min(room, slots),
        tp,
    )
    return Workload(lengths, prompt, batch.passes / batch.gradient_accumulation_steps), speeds


def by_run(folder: str, v: Values, forecast: Forecast) -> tuple[Workload, Speeds]:
    """Return what a run of the recipe logged; rewards and syncs count as training, a vLLM server as one engine."""
    rows = [
        r
        for r in read_run(folder).metrics
        if all(isinstance(r.get(key), int | float) and r[key] for key in LOGGED)
    ]
    if len(rows) < 3:
        raise ValueError(f"{folder} lacks what --run reads: three lines with {', '.join(LOGGED)}.")
    batch, gpus = forecast.plan.batch, v["vllm_tensor_parallel_size"] if v["use_vllm"] else 1
    engines = (
        1 if v["use_vllm"] and v["vllm_mode"] == "server" else max(1, batch.num_processes // gpus)
    )
    updates, tokens = (
        batch.passes / batch.gradient_accumulation_steps,
        [r[MEAN] * batch.completions / engines for r in rows],
    )
    step, row = fitted([r[LONGEST] for r in rows], tokens, [r[GENERATION] for r in rows])
    whole = (
        median((b["time"] - a["time"]) / max(1, b["step"] - a["step"]) for a, b in pairwise(rows))
        * updates
    )
    training = whole - median(
        r.get("time/waiting", 0.0) * updates if r.get("overlap/age") else r[GENERATION]
        for r in rows
    )
    lengths = drawn_lengths(
        batch.completions, median(r[MEAN] for r in rows), round(max(r[LONGEST] for r in rows))
    )
    work = Workload(lengths, forecast.prompt_tokens or 0.0, updates)
    token = max(0.0, training) / training_seconds(work, Speeds(0, 0, token=1), batch.num_processes)
    return work, Speeds(step, row, token, slots=1024, gpus=gpus)


def fitted(first: list[float], second: list[float], seconds: list[float]) -> tuple[float, float]:
    """Return a, b >= 0 with `a * first + b * second` close to `seconds`, of the same mean; equal columns share it."""
    table = np.stack([first, second], 1) / (scale := np.mean([first, second], 1))
    parts = np.maximum(np.linalg.lstsq(table, seconds, rcond=0.1)[0], 0)
    a, b = parts * np.mean(seconds) / parts.sum() / scale
    return float(a), float(b)
