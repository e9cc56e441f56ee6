"""Models of Qwen2.5's shapes, the operations that a step needs, and the rate of matrix products.

Every share of the rate counts operations by the same convention: 6 per token for each trained
weight, 4 for each frozen one, and the head only for completion tokens; attention takes 12
operations per layer, hidden dimension and pair of tokens where one sees the other. Each prompt
counts once, a completion counts only if it can change the gradient, and padding and recomputation
do not count. The rate is measured: it is the best of 20 products of large matrices in the number
type that is used.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.support.step_work import Case, make_work

# hidden, layers, heads, key-value heads, feed-forward; vocabulary; tied embeddings
SHAPES = {
    "0.5B": ((896, 24, 14, 2, 4864), 151_936),
    "1.5B": ((1536, 28, 12, 2, 8960), 151_936),
    "3B": ((2048, 36, 16, 2, 11008), 151_936),
    "tiny": ((64, 2, 2, 1, 128), 2_000),
}
LORA_RANK = 8  # of `step_work.make_trainer`


def make_model(shape: str, device: str) -> Qwen2ForCausalLM:
    """Return a model with random weights, in bfloat16 on a GPU."""
    (hidden, layers, heads, kv_heads, feed), vocab = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=vocab,
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


@dataclass(frozen=True)
class Need:
    """The work that one optimizer step needs, and the tokens that its layouts run."""

    operations: float  # by the convention above
    completion_tokens: int  # of all rows: tokens a second count these
    padded: int  # tokens of one rectangle of all rows, as TRL pads a generation
    chunks: int  # of prompts once, and live completions
    packed: int  # of live rows, each with its prompt


def needed(shape: str, case: Case) -> Need:
    """Count a step's operations and tokens."""
    (hidden, layers, heads, kv_heads, feed), vocab = SHAPES[shape]
    work = make_work(case)
    groups = [range(n * case.group, (n + 1) * case.group) for n in range(len(work.prompts))]
    live = [n for n, rows in enumerate(groups) if len({work.rewards[i] for i in rows}) > 1]
    prompts = {n: len(work.prompts[n]) for n in live}
    written = {n: [len(work.completions[i]) for i in groups[n]] for n in live}
    read = sum(prompts.values())
    made = sum(map(sum, written.values()))
    pairs = sum(p * p / 2 + sum(c * p + c * c / 2 for c in written[n]) for n, p in prompts.items())
    kv = hidden // heads * kv_heads
    body = layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * feed)
    head = vocab * hidden
    sums = 4 if case.lora else 6
    sides = [
        (hidden, hidden),
        (hidden, kv),
        (hidden, kv),
        (hidden, hidden),
        (hidden, feed),
        (hidden, feed),
        (feed, hidden),
    ]
    adapter = layers * LORA_RANK * sum(a + b for a, b in sides) if case.lora else 0
    operations = (
        (sums * body + 6 * adapter) * (read + made)
        + sums * head * made
        + 12 * layers * hidden * pairs
    )
    longest = max(map(len, work.prompts)) + max(map(len, work.completions))
    packed = made + sum(p * case.group for p in prompts.values())
    return Need(
        operations, sum(map(len, work.completions)), case.rows * longest, read + made, packed
    )


@cache
def matrix_rate(device: str) -> float:
    """Return the operations per second of the fastest of 20 large matrix products.

    On a GPU, they are in bfloat16.
    """
    size, dtype = (8192, torch.bfloat16) if device == "cuda" else (512, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        a @ b
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
