"""Estimate how long a step takes on a CPU, for a recipe that has no log yet.

A step samples C completions of at most T tokens and trains on them. A model of P parameters, of
which Q are trained, needs 2 P operations for each token that is sampled, and 4 P + 2 Q for each
token that is trained on, or a third more with gradient checkpointing. Sampling and training reach
only a share of the rate of large matrix multiplications. In addition, each of the T decoding steps
takes a fixed time per layer, however small the layer is.
"""

import torch

from grpo_ext.common.matrix_rate import matrix_rate
from grpo_ext.recipe.batch import Batch
from grpo_ext.recipe.memory import ModelSize
from grpo_ext.recipe.typed_values import Values

# The share of the rate of large matrix multiplications that training and sampling reach. It was
# 0.64 in training and 0.28 in sampling for a model of 4 million parameters, on one core with 32
# completions.
TRAINING_SHARE = 0.6
SAMPLING_SHARE = 0.3
SECONDS_PER_LAYER = 0.0015  # per decoding step, measured with a model of 0.2 million parameters
MEASURED_TOKENS = 1024  # number of rows in the multiplication whose rate is measured
MEASURED_WIDTH = 2048  # its maximum width; a wider multiplication would take seconds


def rate_of_cpu(hidden_size: int) -> float:
    """Measure the rate at which this CPU multiplies matrices, in operations per second.

    The matrices are as wide as the model's hidden layers, but at most `MEASURED_WIDTH`; wider ones
    are multiplied at about the same rate.
    """
    width = min(hidden_size, MEASURED_WIDTH)
    products = matrix_rate("cpu", torch.float32, width, 4 * width)
    return max(products.measure(MEASURED_TOKENS) for _ in range(2))


def step_seconds(size: ModelSize, v: Values, batch: Batch, rate: float) -> float:
    """Estimate how many seconds a step takes if all completions have the maximum length.

    The result is 0 if `max_completion_length` is not set.

    Args:
        size: the dimensions of the model.
        v: the values of the recipe.
        batch: the recipe's batch sizes.
        rate: the rate of matrix multiplications in operations per second, from `rate_of_cpu`.
    """
    tokens = batch.completions_per_step * (v.max_completion_length or 0)
    training: float = (4 * size.parameters + 2 * size.trainable) * tokens
    if v.gradient_checkpointing:
        training *= 4 / 3
    sampling = sampling_seconds(size, v, batch.completions_per_step, rate)
    return sampling + training / (TRAINING_SHARE * rate)


def sampling_seconds(size: ModelSize, v: Values, completions: int, rate: float) -> float:
    """Estimate how many seconds it takes to sample completions that all have the maximum length.

    The result is 0 if `max_completion_length` is not set.

    Args:
        size: the dimensions of the model.
        v: the values of the recipe.
        completions: the number of completions.
        rate: the rate of matrix multiplications in operations per second, from `rate_of_cpu`.
    """
    length = v.max_completion_length or 0
    operations = 2 * size.parameters * completions * length
    calls = size.num_hidden_layers * length
    return calls * SECONDS_PER_LAYER + operations / (SAMPLING_SHARE * rate)
