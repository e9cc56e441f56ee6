"""Estimate how long a step takes on a CPU, for a recipe that has no log yet.

A step samples C completions of at most T tokens and trains on them. A model of P parameters, of
which Q are trained, needs 2 P operations for each token that is sampled, and 4 P + 2 Q for each
token that is trained on, or a third more with gradient checkpointing. Both reach only a share of
the rate of large matrix products. In addition, each of the T decoding steps takes a fixed time per
layer, however small the layer is.
"""

import torch

from grpo_ext.common.matrix_rate import matrix_rate
from grpo_ext.recipe.batch import Batch
from grpo_ext.recipe.memory import ModelSize
from grpo_ext.recipe.typed_values import Values

# Shares of the rate of large matrix products. A model of 4 million parameters reached 0.64 and 0.28
# on one core, with 32 completions.
TRAINING_SHARE = 0.6
SAMPLING_SHARE = 0.3
SECONDS_PER_LAYER = 0.0015  # of a sampled token, by a model of 0.2 million parameters
MEASURED_TOKENS = 1024  # rows of the product whose rate is measured
MEASURED_WIDTH = 2048  # maximum width of the product, which takes seconds with a larger one


def rate_of_cpu(hidden_size: int) -> float:
    """Measure the rate of this CPU in matrix products of a model's width, in operations per second.

    The width is limited to `MEASURED_WIDTH`; wider products run at about the same rate.
    """
    width = min(hidden_size, MEASURED_WIDTH)
    products = matrix_rate("cpu", torch.float32, width, 4 * width)
    return max(products.measure(MEASURED_TOKENS) for _ in range(2))


def step_seconds(size: ModelSize, v: Values, batch: Batch, rate: float) -> float:
    """Estimate the time of a step in seconds if all completions have the maximum length.

    The result is 0 if `max_completion_length` is not set.

    Args:
        size: the dimensions of the model.
        v: the values of the recipe.
        batch: its batch sizes.
        rate: the operations per second of matrix products, from `rate_of_cpu`.
    """
    tokens = batch.completions_per_step * (v.max_completion_length or 0)
    training: float = (4 * size.parameters + 2 * size.trainable) * tokens
    if v.gradient_checkpointing:
        training *= 4 / 3
    sampling = sampling_seconds(size, v, batch.completions_per_step, rate)
    return sampling + training / (TRAINING_SHARE * rate)


def sampling_seconds(size: ModelSize, v: Values, completions: int, rate: float) -> float:
    """Estimate the time in seconds to sample completions that all have the maximum length.

    Args:
        size: the dimensions of the model.
        v: the values of the recipe.
        completions: the number of completions.
        rate: the operations per second of matrix products, from `rate_of_cpu`.
    """
    length = v.max_completion_length or 0
    operations = 2 * size.parameters * completions * length
    calls = size.num_hidden_layers * length
    return calls * SECONDS_PER_LAYER + operations / (SAMPLING_SHARE * rate)
