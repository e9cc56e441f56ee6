"""The rate at which a device multiplies matrices with the shapes of a model."""

from __future__ import annotations

import time
from functools import cache

import torch
from transformers import PreTrainedModel

MEASUREMENTS = 3  # number of first calls of `share` that measure the rate
SECONDS = 0.1  # a measurement multiplies for this long, and at least `PRODUCTS` times
PRODUCTS = 3
MOST_ROWS = {"cpu": 1024}  # more rows do not speed up a CPU
MOST_ROWS_OF_GPU = 8192
FEWEST_ROWS = 128


class MatrixRate:
    """The fastest known rate of a device in matrix products of one dtype and shape.

    The products are those of a feed-forward layer: the tokens of a micro-batch (N, `hidden`) times
    its weights (`hidden`, `intermediate`).

    Other work on the machine can slow down a measurement, but nothing can speed it up. So the
    fastest measurement counts, and the rate is measured several times.

    Args:
        device: the type of the device.
        dtype: the dtype of the matrices.
        hidden: the width of the model.
        intermediate: the width of its feed-forward layers.
    """

    def __init__(self, device: str, dtype: torch.dtype, hidden: int, intermediate: int):
        self.device = device
        self.dtype = dtype
        self.hidden = hidden
        self.intermediate = intermediate
        self.fastest = 0.0  # operations per second
        self._measurements = 0

    def share(self, rate: float, tokens: int) -> float:
        """Return the rate of training as a share of the rate of matrix products, at most 1.

        The first `MEASUREMENTS` calls measure the rate of matrix products, and so do later calls if
        the share would exceed 1. If it would still exceed 1, the measurements were disturbed, or
        other shapes in the model run faster. Training itself consists of matrix products, so its
        rate then becomes the fastest known rate, and the share is 1.

        Args:
            rate: the operations per second of training.
            tokens: the number of tokens in a micro-batch.
        """
        if self._measurements < MEASUREMENTS or rate > self.fastest:
            self._measurements += 1
            self.fastest = max(self.fastest, self.measure(tokens))
        self.fastest = max(self.fastest, rate)
        return rate / self.fastest

    def measure(self, tokens: int) -> float:
        """Return the rate of the fastest of several products, in operations per second.

        The first matrix has `tokens` rows, within the limits of the device. The random state of the
        run does not change.
        """
        most = MOST_ROWS.get(self.device, MOST_ROWS_OF_GPU)
        rows = max(FEWEST_ROWS, min(tokens, most))
        generator = torch.Generator(self.device).manual_seed(0)
        matrices = []
        for height in (rows, self.intermediate):
            shape = (height, self.hidden)
            matrices.append(
                torch.randn(shape, device=self.device, dtype=self.dtype, generator=generator)
            )
        fastest = float("inf")
        spent = 0.0
        products = 0
        while products < PRODUCTS or spent < SECONDS:
            seconds = product_seconds(*matrices)
            fastest = min(fastest, seconds)
            spent += seconds
            products += 1
        return 2 * rows * self.hidden * self.intermediate / fastest


@cache
def matrix_rate(device: str, dtype: torch.dtype, hidden: int, intermediate: int) -> MatrixRate:
    """Return the `MatrixRate` of these arguments, which a process creates only once.

    The arguments (`device`, `dtype`, `hidden`, `intermediate`) are those of `MatrixRate`.
    """
    return MatrixRate(device, dtype, hidden, intermediate)


def matrix_rate_of(model: PreTrainedModel, device: str, dtype: torch.dtype) -> MatrixRate:
    """Return the `MatrixRate` of a model's shape on a device.

    If the config has no width, 512 is used. If it has no size of feed-forward layers, four times
    the width is used; if it has several sizes, the largest is used.

    Args:
        model: the model; only its config is read.
        device: the type of the device, such as "cuda".
        dtype: the dtype of the matrices.
    """
    config = model.config.get_text_config()
    hidden = getattr(config, "hidden_size", None) or 512
    intermediate = getattr(config, "intermediate_size", None) or 4 * hidden
    if isinstance(intermediate, list | tuple):  # one size for each layer
        intermediate = max(intermediate)
    return matrix_rate(device, dtype, hidden, intermediate)


def product_seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the time in seconds of the product of `a` (N, K) and the transpose of `b` (M, K)."""
    start = time.perf_counter()
    a @ b.T
    wait_for(a.device.type)
    return time.perf_counter() - start


def wait_for(device: str) -> None:
    """Wait until a device has finished its work; do nothing for a CPU."""
    if device != "cpu":
        torch.accelerator.synchronize()
