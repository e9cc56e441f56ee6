"""The training phase on a GPU, ours and plain TRL's: Qwen2.5 shapes with random weights in bfloat16.

    python -m benchmarks.gpu [--quick] [--shape 0.5B 1.5B] [--out FILE]

Needs torch for CUDA, transformers, trl 1.16 and this package on the path, and no network. TRL and ours alternate on the same
completions, with activation checkpointing and without. For each: median seconds, completion tokens per second, the needed
operations as a share of the card's matrix rate (measured here, not from the data sheet), and peak memory. In bfloat16 gradients
differ by its rounding; the difference is printed.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.step_bench import SIDES, Bench
from benchmarks.step_work import UNEVEN, Case, make_work

# hidden, layers, heads, key-value heads, feed-forward; vocabulary 151,936, tied embeddings
SHAPES = {"0.5B": (896, 24, 14, 2, 4864), "1.5B": (1536, 28, 12, 2, 8960), "tiny": (64, 2, 4, 2, 128)}
VOCAB = 151_936
WORK = {
    "uneven": replace(UNEVEN, vocab=VOCAB),
    "long prompts": Case(32, 8, 8, (1024, 1024), (128, 0.0, 128), 0.0, VOCAB),
    "equal, all live": Case(64, 8, 8, (128, 128), (512, 0.0, 512), 0.0, VOCAB),
}


def make_model(shape: str, device: str) -> Qwen2ForCausalLM:
    """Return a model with random weights."""
    hidden, layers, heads, kv_heads, feed = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=feed,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = Qwen2ForCausalLM(config)
        return model.to(torch.bfloat16 if device == "cuda" else torch.float32)


def matrix_rate(device: str, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product."""
    size = 8192 if device == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def measure(shape: str, case: Case, device: str, rounds: int) -> dict[str, Any]:
    """Return one row per side."""
    model = make_model(shape, device)
    weights = sum(p.numel() for p in model.parameters()) - VOCAB * SHAPES[shape][0]
    work = make_work(case)
    groups = range(len(work.prompts))
    live = [n for n in groups if len(set(work.rewards[n * case.group : (n + 1) * case.group])) > 1]
    written = sum(len(work.completions[n * case.group + i]) for n in live for i in range(case.group))
    read = sum(len(work.prompts[n]) for n in live)
    needed = 6 * (weights * (read + written) + VOCAB * SHAPES[shape][0] * written)
    bench = Bench(case, model=model)
    del model
    rows: dict[str, Any] = {}
    grads = {}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            taken, tokens, gradient = bench.step(side)
            grads[side] = gradient.float().cpu()
            bench.trainers[side].model.zero_grad(set_to_none=True)
            if number:
                seconds[side].append(taken)
            peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
            rows[side] = {"tokens": tokens, "peak GiB": peak / 2**30}
    rate = matrix_rate(device, case.dtype)
    for side in SIDES:
        median = statistics.median(seconds[side])
        completions = sum(map(len, work.completions))
        rows[side] |= {"s": median, "tokens a s": completions / median, "share": needed / median / rate}
    rows["ratio"] = rows["TRL"]["s"] / rows["ours"]["s"]
    rows["gradient"] = float((grads["ours"] - grads["TRL"]).norm() / grads["TRL"].norm())
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="0.5B, uneven completions, one round")
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=["0.5B", "1.5B"])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the program, with --shape tiny")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("There is no GPU here: benchmarks.step measures the same on a CPU.")
    logging.disable(logging.WARNING)
    found = {}
    for shape in args.shape[:1] if args.quick else args.shape:
        for name, case in list(WORK.items())[: 1 if args.quick else None]:
            for checkpointing in (False, True):
                settings = (("gradient_checkpointing", checkpointing),)
                dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
                full = replace(case, settings=settings, dtype=dtype, on_gpu=args.device == "cuda")
                if shape == "tiny":
                    full = replace(full, rows=16, completion=(40, 0.6, 120))
                row = measure(shape, full, args.device, 1 if args.quick else 3)
                title = f"{shape} {name}{', checkpointing' if checkpointing else ''}"
                found[title] = row
                sides = [
                    f"{side} {x['s']:.2f} s, {x['tokens a s']:.0f} tokens/s, {x['share']:.0%} of the rate, "
                    f"{x['peak GiB']:.1f} GiB"
                    for side, x in row.items()
                    if side in SIDES
                ]
                print(f"{title}: {'; '.join(sides)}; {row['ratio']:.2f} x; gradient {row['gradient']:.0e}", flush=True)
    if args.out:
        name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"device": name, "torch": torch.__version__, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
