"""Small causal language models, untrained, in the shapes of real families, so that every code path is the real one."""

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
    """A float32 model with tied embeddings, and with the vocabulary's size and the pad and eos tokens of `tokenizer`.

    `seed` is that of the initial weights; torch's global generator is left as it was. `shape` has values in place of those of
    `SHAPE`, which make 0.5 million parameters. `ValueError` for an architecture that is none of `ARCHITECTURES`, `TypeError`
    for a key that `SHAPE` does not have.
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
