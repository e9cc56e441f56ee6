"""A base that an adapter is merged into and taken out of again, and is then what it was.

peft adds the adapter's product to a weight and later subtracts it, and each rounds: some weights come back changed, in bfloat16
more with every weight sync. The frozen base, which the reference and the saved adapter rest on, drifts away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer


@contextmanager
def base_kept(model: PeftModel) -> Iterator[None]:
    """Merge and unmerge a model's adapters within; afterwards its base is to the bit what it was.

    Each layer is merged and unmerged once before, to see which of its numbers do not come back: few, so that they are kept on
    the CPU with their places.
    """
    lost = [kept for layer in model.modules() if isinstance(layer, BaseTunerLayer) for kept in lost_by_merging(layer)]
    yield
    for weight, places, numbers in lost:
        weight.data.view(-1)[places.to(weight.device)] = numbers.to(weight.device)


@torch.no_grad()
def lost_by_merging(layer: BaseTunerLayer) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each weight of a layer's base that changes: it, the places (N,) in it, and the numbers (N,) that belong there."""
    weights = list(layer.get_base_layer().parameters())
    before = [weight.detach().clone() for weight in weights]
    layer.merge()
    layer.unmerge()
    for weight, former in zip(weights, before, strict=True):
        places = (weight.data != former).flatten().nonzero().squeeze(1)  # (N,); peft may have replaced `data`
        weight.data.copy_(former)
        if len(places):
            yield weight, places.cpu(), former.flatten()[places].cpu()
