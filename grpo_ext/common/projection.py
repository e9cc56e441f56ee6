"""Compute logits in float32 from weights and hidden states in half precision.

The product of two bfloat16 matrices is usually rounded to bfloat16, which has 8 significant bits: a
logit near 12 is rounded by up to 0.03, and so is its log-prob. `Projection` multiplies the same
numbers, but keeps the result in float32.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

_lock = threading.Lock()
_settings_before: list[str] = []  # the settings before each open `bfloat16_units` context


class Projection:
    """Callable that applies a language model head to hidden states and returns float32 logits.

    Hidden states, weight and bias are rounded to `dtype`. The products of their entries are summed
    in float32, and the sums are not rounded.

    Args:
        weight: (V, H), the weight of the head.
        bias: (V,), the bias of the head; `None` if it has none.
        dtype: the dtype in which the model multiplies matrices.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype):
        self.dtype = dtype
        # only CUDA multiplies in half precision without rounding the result
        self._on_cuda = weight.is_cuda and dtype != torch.float32
        weight = weight.detach().to(dtype)
        self._weight = weight if self._on_cuda else weight.float()  # (V, H)
        self._bias = None if bias is None else bias.detach().to(dtype).float()  # (V,)

    def __call__(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the float32 logits (n, V) for hidden states, without gradient.

        Args:
            hidden: (n, H), the hidden states, of any floating-point dtype.
            out: (n, V), a float32 tensor to write the logits to; `None` allocates a new one.
        """
        device = self._weight.device
        hidden = hidden.detach().to(self.dtype)
        with torch.autocast(device.type, enabled=False):
            if self._on_cuda:
                logits = torch.mm(hidden, self._weight.t(), out_dtype=torch.float32)
            else:
                with self._units():
                    logits = torch.mm(hidden.float(), self._weight.t(), out=out)
            if self._bias is not None:
                logits.add_(self._bias)
        if out is not None and logits is not out:
            out.copy_(logits)
            return out
        return logits

    def _units(self) -> AbstractContextManager[None]:
        if self.dtype == torch.bfloat16 and self._weight.device.type == "cpu":
            return bfloat16_units()
        return nullcontext()


@contextmanager
def bfloat16_units() -> Iterator[None]:
    """Context manager that lets a CPU use bfloat16 instructions to multiply float32 matrices.

    Matrices whose entries are bfloat16 numbers are then multiplied in about a third of the time,
    and without any further rounding, because the sums are in float32. The setting applies to the
    whole process: while a context is open, matrices that other threads multiply are rounded to
    bfloat16, too. Contexts may overlap; the last one to exit restores the setting.
    """
    backend: Any = torch.backends.mkldnn  # the stubs lack `matmul`
    setting = backend.matmul
    with _lock:
        _settings_before.append(setting.fp32_precision)
        setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        with _lock:
            first = _settings_before[0]
            _settings_before.pop()
            if not _settings_before:
                setting.fp32_precision = first


def computing_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype in which linear layers multiply `hidden`, with or without autocast."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return hidden.dtype
