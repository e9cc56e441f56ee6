"""Tiny untrained models of several families, and batches for them."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

VOCAB = 64
ENDS = list(range(1, 13))  # many end tokens, so that untrained models end at many different lengths
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
GROUPED = {**COMMON, "num_key_value_heads": 2, "head_dim": 8}
GEMMA = {"sliding_window": 6, "query_pre_attn_scalar": 8, "tie_word_embeddings": False}
FAMILIES = {
    "llama": GROUPED,
    "qwen2": {**GROUPED, "tie_word_embeddings": True},
    "qwen3": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 6},
    "gemma2": {
        **GROUPED,
        **GEMMA,
        "attn_implementation": "eager",
    },  # soft caps, every second layer with a window
    "gemma3_text": {**GROUPED, **GEMMA},
    "gpt_neox": COMMON,
    "opt": {
        **COMMON,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
        "dropout": 0.0,
        "max_position_embeddings": 300,
    },
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "qwen3_moe": {
        **GROUPED,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
}


def make_model(family: str = "llama", seed: int = 0, initializer_range: float = 0.4, **more):
    settings = {**FAMILIES[family], **more}
    attention = settings.pop("attn_implementation", None)
    config = AutoConfig.for_model(family, initializer_range=initializer_range, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=attention
        )
    return model.eval()


def make_batch(lengths=(5, 3, 9, 1), group: int = 4, seed: int = 0) -> dict[str, torch.Tensor]:
    """Left-padded prompts of the given lengths, each `group` times, one after the other."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, n in enumerate(lengths):
        ids[row, ids.size(1) - n :] = torch.randint(13, VOCAB, (n,), generator=generator)
        mask[row, ids.size(1) - n :] = 1
    return {
        "input_ids": ids.repeat_interleave(group, 0),
        "attention_mask": mask.repeat_interleave(group, 0),
    }


def decoding(length: int = 24, **more) -> GenerationConfig:
    return GenerationConfig(
        **{
            "max_new_tokens": length,
            "do_sample": False,
            "pad_token_id": 0,
            "eos_token_id": ENDS,
            **more,
        }
    )


@contextmanager
def batch_sizes(model):
    """(rows, width) of each forward pass of the model."""
    seen = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        yield seen
    finally:
        hook.remove()
