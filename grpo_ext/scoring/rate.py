"""Count the operations that training needs, and measure how fast a device multiplies matrices.

A weight takes 6 operations per token if it is trained, and 4 if it is frozen (forward, and the
gradient of its input). Attention takes 12 operations per layer, per hidden dimension and per pair
of tokens of which one sees the other. The head counts only for completion tokens, and each distinct
prompt counts once. Padding, recomputation and scoring without gradient do not count. (Korthikanti
et al. 2022, arXiv 2205.05198, appendix A, with causal attention.)
"""

import time
from functools import cache

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_ext.batching.cuts import equal_prompts
from grpo_ext.step.records import Scored


@cache
def matrix_rate(device: str, dtype: torch.dtype) -> float:
    """Return a device's operations per second in the fastest of 10 large matrix products."""
    size = 512 if device == "cpu" else 8192
    # its own generator, so that measuring does not change the random numbers of a run
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randn(size, size, device=device, dtype=dtype, generator=generator)
    b = torch.randn(size, size, device=device, dtype=dtype, generator=generator)
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        wait_for(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def wait_for(device: str) -> None:
    """Wait until a device has finished its work; do nothing for a CPU."""
    if device != "cpu":
        torch.accelerator.synchronize()


def needed(rows: Scored) -> Tensor:
    """Return the counts of a micro-batch that are multiplied by `costs`: (3,), float64.

    These are the number of tokens in distinct prompts and completions, the number of completion
    tokens, and the number of token pairs in attention.
    """
    first, _ = equal_prompts(rows.prompt_ids, rows.prompt_mask)
    # on the CPU, since an Apple GPU has no float64
    prompt_lengths = rows.prompt_mask.sum(1).cpu().double()  # (B,)
    lengths = rows.completion_mask.sum(1).cpu().double()  # (B,)
    distinct = prompt_lengths[first.cpu()]  # (N,)
    completion_tokens = lengths.sum()
    completion_pairs = (lengths * (prompt_lengths + lengths / 2)).sum()
    prompt_pairs = (distinct**2).sum() / 2
    tokens = distinct.sum() + completion_tokens
    return torch.stack([tokens, completion_tokens, completion_pairs + prompt_pairs])


def _operations(parameter: Tensor) -> int:
    """Return the operations per token of a weight, whose size under ZeRO is in `ds_numel`."""
    size: int = getattr(parameter, "ds_numel", parameter.numel())
    per_token = 6 if parameter.requires_grad else 4
    return size * per_token


def costs(model: PreTrainedModel) -> Tensor:
    """Return the operations of a forward and backward pass per unit of each `needed` count: (3,).

    The model may have an adapter and may be sharded by ZeRO. All experts count, even inactive ones.
    """
    config = model.config.get_text_config()
    embedding = model.get_input_embeddings().weight
    assert isinstance(embedding, Tensor)
    output = getattr(model.get_output_embeddings(), "weight", None)
    head = _operations(embedding)
    all_weights = sum(_operations(parameter) for parameter in model.parameters())
    # a token runs through all weights except the embedding and the head, which may share a matrix
    token = all_weights - head
    if output is not embedding:
        token -= head
    pair = 12 * getattr(config, "hidden_size", 0) * getattr(config, "num_hidden_layers", 0)
    return torch.tensor([token, head, pair], dtype=torch.float64)
