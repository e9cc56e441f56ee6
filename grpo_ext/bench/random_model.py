"""Create random weights and random completions for a model that is not on this machine."""

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

from grpo_ext.common.whole_model import weights_files
from grpo_ext.preflight.forecast import known_config
from grpo_ext.recipe.load import Recipe
from grpo_ext.step.records import Generation
from grpo_ext.tiny.tokenizer import build_tokenizer

MEAN_SHARE = 0.4  # mean length of random completions, as a share of max_completion_length
LOG_DEVIATION = 0.43  # standard deviation of the log of drawn lengths, so that 1% reach the limit


def has_weights(model: str) -> bool:
    """Return whether a model's weights are in the folder `model`, or in the local hub cache."""
    folder = Path(model).expanduser()
    if not folder.is_dir() and model.count("/") < 2:
        config = try_to_load_from_cache(model, "config.json")
        if isinstance(config, str):
            folder = Path(config).parent
    return bool(weights_files(folder))


def make_random_model(
    recipe: Recipe, device: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a model with random weights and the shape of the recipe's model, and a tokenizer.

    The model is in float32 on "cpu", and in bfloat16 on any other `device`. The tokenizer is a
    stand-in for the model's own.

    Raises:
        ValueError: if the model is not listed in `shapes.yaml`, and its config cannot be read on
            this machine.
    """
    name = recipe.flat["model_name_or_path"]
    try:
        config = known_config(name) or AutoConfig.from_pretrained(name, local_files_only=True)
    except OSError:
        raise ValueError(
            f"{name} has no readable config.json on this machine, and grpo-ext does not know the "
            "model's shape. Pass `--model_name_or_path FOLDER`, where FOLDER has at least the "
            "model's config.json."
        ) from None
    tokenizer = build_tokenizer([])
    config.pad_token_id = tokenizer.pad_token_id
    config.eos_token_id = tokenizer.eos_token_id
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model, tokenizer


def with_random_completions(generation: Generation, limit: int) -> Generation:
    """Return a copy of a random model's generation, with completions of random lengths.

    A random model does not end its completions itself. The new lengths are at most `limit` tokens.
    The tokens of each new completion are drawn from the one that it replaces. Sampling log-probs,
    if any, become 0, and kept tokens are dropped.
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
    """Draw `count` lengths, in tokens, from a lognormal distribution.

    Their mean is about `MEAN_SHARE * limit`, and each is from 1 to `limit`. Calls with the same
    arguments return the same lengths.
    """
    location = math.log(MEAN_SHARE * limit) - LOG_DEVIATION**2 / 2
    generator = np.random.default_rng(0)
    lengths = generator.lognormal(location, LOG_DEVIATION, count)
    limited = lengths.round().clip(1, limit)
    return limited.astype(int).tolist()
