"""vLLM's plugin entry point: loaded in the API server, the engine and every worker, and where a trainer makes an engine."""

from typing import Any


def register() -> None:
    """Make vLLM's CPU backend take new weights while it runs; does nothing on other platforms, or where it is done."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.layers import utils

    utils.dispatch_cpu_unquantized_gemm = keep_weight
    if "gloo" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("gloo", "grpo_ext.vllm.transfer", "GlooTransferEngine")


def keep_weight(layer: Any, remove_weight: bool) -> None:
    """Multiply by the weight that the layer has.

    vLLM's own makes a packed copy for oneDNN and drops the weight, so that a linear layer cannot be loaded again, and an output
    head that is tied to the embedding keeps multiplying by the copy of the first weights.
    """
    import torch

    layer.cpu_linear = torch.nn.functional.linear
