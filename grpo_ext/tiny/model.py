"""Small untrained causal language models with the architectures of real families, so that tests run the real code."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

ARCHITECTURES = ("llama", "qwen2", "qwen3")
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "initializer_range": 0.08,  # standard deviation of the initial weights; the usual 0.02 learns slowly at this width
}


def build_model(
    tokenizer: PreTrainedTokenizerBase, *, architecture: str = "llama", seed: int = 0, **shape: Any
) -> PreTrainedModel:
    """Build a float32 model with tied embeddings, and with the vocabulary size, pad token and eos token of `tokenizer`.

    Args:
        architecture: one of `ARCHITECTURES`, else `ValueError`.
        seed: the seed of the initial weights; torch's global generator does not change.
        shape: replaces values of `SHAPE`, which give 0.5 million parameters; `TypeError` for other keys.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"architecture={architecture!r}: write one of {', '.join(ARCHITECTURES)}.")
    if unknown := shape.keys() - SHAPE.keys():
        raise TypeError(f"{', '.join(sorted(unknown))}: the shape of a tiny model has {', '.join(SHAPE)}.")
    shape = SHAPE | shape
    heads = shape["num_attention_heads"]
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        **shape,
        num_key_value_heads=heads,
        head_dim=shape["hidden_size"] // heads,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
