"""Small causal language models, untrained, in the shapes of real families, so that every code path is the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ARCHITECTURES = ("llama", "qwen2", "qwen3")


def build_model(
    tokenizer: PreTrainedTokenizerBase,
    *,
    architecture: str = "llama",
    hidden_size: int = 128,
    intermediate_size: int = 384,
    num_hidden_layers: int = 2,
    num_attention_heads: int = 4,
    max_position_embeddings: int = 1024,
    initializer_range: float = 0.08,
    seed: int = 0,
) -> PreTrainedModel:
    """A float32 model for `tokenizer`, with tied embeddings; the defaults make 0.5 million parameters.

    Args:
        tokenizer: gives the vocabulary's size and the pad and eos tokens.
        architecture: "llama", "qwen2" or "qwen3".
        initializer_range: standard deviation of the initial weights. The usual 0.02 learns slowly at this width.
        seed: of the initial weights; torch's global generator is left as it was.

    Raises:
        ValueError: if `architecture` is none of the three.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if architecture not in ARCHITECTURES:
        raise ValueError(f"architecture={architecture!r}: write one of {', '.join(ARCHITECTURES)}.")
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=num_attention_heads,
        num_key_value_heads=num_attention_heads,
        head_dim=hidden_size // num_attention_heads,
        max_position_embeddings=max_position_embeddings,
        initializer_range=initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
