"""A vLLM plugin; vLLM calls its entry point in the API server, each engine and each worker."""

from typing import Any


def register() -> None:
    """On a CPU, let vLLM load new weights while it runs, and register weight transfer over gloo.

    On other platforms, do nothing.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.layers import utils

    utils.dispatch_cpu_unquantized_gemm = keep_weight
    if "gloo" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            "gloo", "grpo_ext.vllm.transfer", "GlooTransferEngine"
        )


def keep_weight(layer: Any, remove_weight: bool) -> None:
    """Make a layer use its own weight; replaces vLLM's `dispatch_cpu_unquantized_gemm`.

    vLLM's function replaces the weight with a packed copy for oneDNN. After that, a linear layer
    cannot load new weights, and an output head that is tied to the embedding keeps the old weights.

    Args:
        layer: a linear layer or output head.
        remove_weight: ignored; vLLM's function would delete the weight if it is `True`.
    """
    import torch

    layer.cpu_linear = torch.nn.functional.linear
