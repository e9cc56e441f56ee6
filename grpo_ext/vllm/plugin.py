"""vLLM's plugin entry point, loaded in the API server, each engine and each worker."""

from typing import Any


def register() -> None:
    """Let vLLM's CPU backend load new weights while it runs; other platforms do not change."""
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
    """Let a layer multiply by its weight.

    vLLM replaces the weight by a packed copy for oneDNN. Then a linear layer cannot be loaded
    again, and an output head that is tied to the embedding keeps the first weights.
    """
    import torch

    layer.cpu_linear = torch.nn.functional.linear
