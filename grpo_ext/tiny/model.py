"""Build small untrained language models with the architectures of real model families."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    # standard deviation of the initial weights; with the usual 0.02, training is slow at this width
    "initializer_range": 0.08,
}


def build_model(
    tokenizer: PreTrainedTokenizerBase,
    *,
    architecture: str = "llama",
    seed: int = 0,
    **shape: Any,
) -> PreTrainedModel:
    """Build a small float32 model with random weights and tied embeddings.

    Args:
        tokenizer: the tokenizer, which determines the vocabulary size, the pad token and the eos
            token.
        architecture: a model type in transformers, such as "llama", "qwen2" or "qwen3".
        seed: the seed of the initial weights. torch's RNG states are left unchanged.
        shape: values that replace those in `SHAPE`. With the values in `SHAPE`, the model has about
            0.5 million parameters.

    Raises:
        TypeError: if `shape` has a key that `SHAPE` lacks.
        ValueError: if the architecture is unknown to transformers.
    """
    unknown = shape.keys() - SHAPE.keys()
    if unknown:
        raise TypeError(
            f"Unknown keys in a tiny model's shape: {', '.join(sorted(unknown))}. Choose from "
            f"{', '.join(SHAPE)}."
        )
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
        torch.default_generator.manual_seed(seed)  # the generators of GPUs are left unchanged
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def compose_numbers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 0,
) -> None:
    """Set the embedding of each single-token number up to 99 to the sum of two digit vectors.

    The digit vectors are random and differ between tens and ones. After 38,400 demonstrations, a
    model with this initialization adds 9 of 10 pairs of numbers correctly; a model with independent
    embeddings adds 1 of 4 correctly.

    Args:
        model: the model, whose input embeddings are changed in place.
        tokenizer: the model's tokenizer.
        seed: the seed of the digit vectors.
    """
    weight = model.get_input_embeddings().get_parameter("weight")  # (V, H)
    scale = model.config.initializer_range / 2**0.5
    generator = torch.Generator().manual_seed(seed)
    hidden_size = weight.shape[1]
    digits = scale * torch.randn(2, 10, hidden_size, generator=generator)
    tens, ones = digits  # (10, H) each
    with torch.no_grad():
        for number in range(100):
            ids = tokenizer(str(number)).input_ids
            if len(ids) == 1:
                weight[ids[0]] = tens[number // 10] + ones[number % 10]
