"""vLLM's plugin entry point, loaded in the API server, each engine and each worker."""

from typing import Any


def register() -> None:
    """Let vLLM's CPU backend load new weights while it runs; other platforms are unaffected."""
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
    """Make a layer multiply by its own weight; replaces a function of vLLM.

    vLLM's function replaces the weight with a packed copy for oneDNN. After that, a linear layer
    cannot load new weights, and an output head tied to the embedding keeps the first ones.
    """
    import torch

    layer.cpu_linear = torch.nn.functional.linear
