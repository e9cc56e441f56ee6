"""Measure how fast a device multiplies matrices with the shapes of a feed-forward layer."""

from __future__ import annotations

import time
from functools import cache

import torch
from transformers import PreTrainedModel

MEASUREMENTS = 3  # the first calls of `share`, up to this number, measure the rate
SECONDS = 0.1  # minimum duration of a measurement
PRODUCTS = 3  # minimum number of matrix multiplications in a measurement
MOST_ROWS = {"cpu": 1024}  # more rows do not make a CPU faster
MOST_ROWS_OF_GPU = 8192
FEWEST_ROWS = 128


class MatrixRate:
    """The highest known rate at which a device multiplies matrices of one dtype and shape.

    The matrices are those of a feed-forward layer: the hidden states of a micro-batch (N, `hidden`)
    and the weights (`hidden`, `intermediate`).

    Other work on the machine can slow down a measurement, but nothing can speed it up. Therefore
    the rate is measured several times, and the highest result is used.

    Args:
        device: the type of the device, such as "cuda".
        dtype: the dtype of the matrices.
        hidden: the hidden size of the model.
        intermediate: the intermediate size of the feed-forward layers.
    """

    def __init__(self, device: str, dtype: torch.dtype, hidden: int, intermediate: int):
        self.device = device
        self.dtype = dtype
        self.hidden = hidden
        self.intermediate = intermediate
        self.fastest = 0.0  # operations per second
        self._measurements = 0

    def share(self, rate: float, tokens: int) -> float:
        """Return the training rate as a share (at most 1) of the rate of matrix multiplication.

        The first `MEASUREMENTS` calls measure the rate of matrix multiplication. Later calls
        measure it again only if the share would exceed 1. If the share would exceed 1 even then,
        the measurements were disturbed, or other shapes in the model run faster: the training rate
        becomes the highest known rate, and the share is 1.

        Args:
            rate: the floating-point operations per second of training.
            tokens: the number of tokens in a micro-batch.
        """
        if self._measurements < MEASUREMENTS or rate > self.fastest:
            self._measurements += 1
            self.fastest = max(self.fastest, self.measure(tokens))
        self.fastest = max(self.fastest, rate)
        return rate / self.fastest

    def measure(self, tokens: int) -> float:
        """Measure several matrix multiplications and return the highest rate.

        The rate is in floating-point operations per second. The first matrix has `tokens` rows, but
        at least `FEWEST_ROWS` and at most `MOST_ROWS` (CPU) or `MOST_ROWS_OF_GPU`. The global RNG
        states do not change.
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
    """Return the `MatrixRate` for these arguments; later calls return the same object.

    Args:
        device: the type of the device, such as "cuda".
        dtype: the dtype of the matrices.
        hidden: the hidden size of the model.
        intermediate: the intermediate size of the feed-forward layers.
    """
    return MatrixRate(device, dtype, hidden, intermediate)


def matrix_rate_of(model: PreTrainedModel, device: str, dtype: torch.dtype) -> MatrixRate:
    """Return the `MatrixRate` for the feed-forward layers of a model on a device.

    If the config has no `hidden_size`, 512 is used. If it has no `intermediate_size`, four times
    the hidden size is used; if it has one for each layer, the largest is used.

    Args:
        model: the model; only its config is used.
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
    """Multiply `a` (N, K) by the transpose of `b` (M, K), and return how many seconds this took."""
    start = time.perf_counter()
    a @ b.T
    wait_for(a.device.type)
    return time.perf_counter() - start


def wait_for(device: str) -> None:
    """Wait until a device has finished its work; do nothing for a CPU."""
    if device != "cpu":
        torch.accelerator.synchronize()
