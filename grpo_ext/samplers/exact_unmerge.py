"""Restore a model's base weights exactly after its adapter was merged and unmerged.

peft adds the adapter's update to a weight and later subtracts it, and both operations round. Some
weights would therefore change (in bfloat16, more of them with every weight sync), and the frozen
base, which the reference policy and the saved adapter rely on, would drift.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor


@contextmanager
def base_kept(model: PeftModel) -> Iterator[None]:
    """Context manager that restores the base weights after its block merges and unmerges adapters.

    Before the block, each layer is merged and unmerged once to find the few values that change.
    Their original values are kept on the CPU, with their positions, and written back on exit. If
    the block raises an error, the weights are not restored.
    """
    changes: list[tuple[Tensor, Tensor, Tensor]] = []
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            changes += changed_by_merging(layer)
    yield
    for weight, positions, values in changes:
        weight.data.view(-1)[positions.to(weight.device)] = values.to(weight.device)


@torch.no_grad()
def changed_by_merging(layer: BaseTunerLayer) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (weight, positions, values) for each weight that merging and unmerging changes.

    `positions` (N,) are the flat indices of the changed elements, and `values` (N,) are their
    original values, both on the CPU. Each weight is restored before it is yielded.
    """
    weights = list(layer.get_base_layer().parameters())
    before = [weight.detach().clone() for weight in weights]
    layer.merge()
    layer.unmerge()
    for weight, former in zip(weights, before, strict=True):
        # (elements,); peft may have replaced `data`
        is_changed = (weight.data != former).flatten()
        positions = is_changed.nonzero().squeeze(1)
        weight.data.copy_(former)
        if len(positions):
            values = former.flatten()[positions]
            yield weight, positions.cpu(), values.cpu()
