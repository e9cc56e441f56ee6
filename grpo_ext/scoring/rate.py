"""The operations that training needs, and the rate at which a device multiplies matrices.

A weight takes 6 operations per token if it is trained, and 4 if it is frozen (forward, and the
gradient of its input). Attention takes 12 operations per layer, hidden size and pair of tokens that
see each other. The head counts at completions only, and each distinct prompt once. Padding,
recomputation and scoring without gradient do not count. (Korthikanti et al. 2022, arXiv 2205.05198,
appendix A, with causal attention.)
"""

import time
from functools import cache
from typing import Any

import torch
from torch import Tensor

from grpo_ext.batching.cuts import equal_prompts
from grpo_ext.step.records import Scored


@cache
def matrix_rate(device: str, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product on a device, the fastest of 10."""
    size = 512 if device == "cpu" else 8192
    own = torch.Generator(device).manual_seed(
        0
    )  # a run draws the same numbers whether it is measured or not
    a, b = (torch.randn(size, size, device=device, dtype=dtype, generator=own) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        wait_for(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def wait_for(device: str) -> None:
    """Wait until a device has done its work; a CPU always has."""
    if device != "cpu":
        torch.accelerator.synchronize()


def needed(rows: Scored) -> Tensor:
    """Return (3,) of a micro-batch: tokens of distinct prompts and completions, of completions, and
    pairs in attention.
    """
    first, _ = equal_prompts(rows.prompt_ids, rows.prompt_mask)
    # on the CPU, since an Apple GPU has no float64
    before, own = (
        mask.sum(1).cpu().double() for mask in (rows.prompt_mask, rows.completion_mask)
    )  # (B,)
    prompts = before[first.cpu()]
    pairs = (own * (before + own / 2)).sum() + (prompts**2).sum() / 2
    return torch.stack([prompts.sum() + own.sum(), own.sum(), pairs])


def costs(model: Any) -> Tensor:
    """Return (3,), the operations of a forward and a backward pass for each of the counts of
    `needed`.

    The model may have an adapter and may be sharded by ZeRO; all experts count.
    """
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
    config = model.config.get_text_config()
    embedding = model.get_input_embeddings().weight
    table = getattr(embedding, "ds_numel", embedding.numel())
    tied = getattr(model.get_output_embeddings(), "weight", None) is embedding
    head = table * (6 if embedding.requires_grad else 4)
    every = sum(size * (6 if trained else 4) for size, trained in sizes)
    token = every - head * (1 if tied else 2)
    pair = 12 * getattr(config, "hidden_size", 0) * getattr(config, "num_hidden_layers", 0)
    return torch.tensor([token, head, pair], dtype=torch.float64)
