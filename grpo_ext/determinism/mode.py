"""Run a model so that a token's log-prob is bitwise the same in every batch.

Within `InvariantOperations`, three kinds of torch operations are replaced: matrix multiplications
by weights, attention, and activation functions. All other operations of the supported models
process each token independently. Backward passes use torch's ordinary operations.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from grpo_ext.determinism import activations, products
from grpo_ext.determinism.attention import attention

REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.linear: products.linear,
    torch.addmm: products.addmm,
    torch.mm: products.mm,
    functional.scaled_dot_product_attention: attention,
    functional.silu: activations.silu,
    functional.gelu: activations.gelu,
    torch.sigmoid: activations.sigmoid,
    torch.Tensor.sigmoid: activations.sigmoid,
}


class InvariantOperations(TorchFunctionMode):
    """Context manager that replaces the torch functions in `REPLACED` with batch-invariant ones.

    It affects only the current thread.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        replacement = REPLACED.get(func, func)
        return replacement(*args, **(kwargs or {}))


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Context manager that limits torch to deterministic algorithms, including backward passes.

    Operations without a deterministic algorithm raise `RuntimeError`. By default, torch would also
    fill new memory, to expose reads of uninitialized memory; this is turned off. On exit, the
    previous settings are restored.
    """
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # type checkers do not find its attributes
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        memory.fill_uninitialized_memory = fills
