"""Random weights and random completions for a model that is not on this machine."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import try_to_load_from_cache
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpo_ext.preflight.forecast import known_config
from grpo_ext.recipe.load import Recipe
from grpo_ext.step.records import Generation
from grpo_ext.tiny.tokenizer import build_tokenizer

MEAN_SHARE = 0.4  # mean length of random completions, as a share of max_completion_length
LOG_DEVIATION = 0.43  # standard deviation of the logarithm of drawn lengths: 1 % reach the limit


def has_weights(model: str) -> bool:
    """Return whether a model's weights are in a folder of this name or in the hub's cache."""
    folder = Path(model).expanduser()
    if not folder.is_dir() and model.count("/") < 2:
        config = try_to_load_from_cache(model, "config.json")
        if isinstance(config, str):
            folder = Path(config).parent
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def make_random_model(recipe: Recipe) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a model with the recipe's shape and random weights, and a tokenizer for it.

    The model is in bfloat16 on the GPU, or in float32 on the CPU if the recipe sets `use_cpu` or
    there is no GPU.

    Raises:
        ValueError: if the shape is not known and no config of the model can be read on this
            machine.
    """
    name = recipe.flat["model_name_or_path"]
    try:
        config = known_config(name) or AutoConfig.from_pretrained(name, local_files_only=True)
    except OSError:
        raise ValueError(
            f"{name} has no readable config.json on this machine, and its shape is not known. "
            "Write `--model_name_or_path FOLDER`, where FOLDER has at least the model's "
            "config.json."
        ) from None
    tokenizer = build_tokenizer([])
    config.pad_token_id = tokenizer.pad_token_id
    config.eos_token_id = tokenizer.eos_token_id
    device = "cuda"
    dtype = torch.bfloat16
    if recipe.training.use_cpu:
        device = "cpu"
        dtype = torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model, tokenizer


def with_random_completions(generation: Generation, limit: int) -> Generation:
    """Replace a random model's completions, which never end, with completions of random lengths.

    The lengths are at most `limit` tokens. The tokens of each new completion are drawn from the
    completion that it replaces. Sampling log-probs, if any, become 0, and kept tokens are dropped.
    """
    generator = np.random.default_rng(0)
    lengths = draw_lengths(len(generation.completion_ids), limit)
    completion_ids = []
    for tokens, length in zip(generation.completion_ids, lengths, strict=True):
        completion_ids.append(generator.choice(tokens, length).tolist())
    sampling_logps = None
    if generation.sampling_logps is not None:
        sampling_logps = [torch.zeros(length) for length in lengths]
    return replace(
        generation,
        completion_ids=completion_ids,
        sampling_logps=sampling_logps,
        kept=None,
    )


def draw_lengths(count: int, limit: int) -> list[int]:
    """Return `count` lengths in tokens from a lognormal distribution, always the same ones.

    Their mean is about `MEAN_SHARE * limit`, and each is from 1 to `limit`.
    """
    location = math.log(MEAN_SHARE * limit) - LOG_DEVIATION**2 / 2
    generator = np.random.default_rng(0)
    lengths = generator.lognormal(location, LOG_DEVIATION, count)
    limited = lengths.round().clip(1, limit)
    return limited.astype(int).tolist()
