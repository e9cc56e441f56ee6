"""Restore the base of a model exactly after its adapter was merged and unmerged.

peft adds the product of the adapter to a weight and later subtracts it, and both operations round.
Some weights come back changed, in bfloat16 more with every weight sync, so the frozen base that the
reference and the saved adapter need would drift.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer


@contextmanager
def base_kept(model: PeftModel) -> Iterator[None]:
    """The context may merge and unmerge a model's adapters; afterwards the base has exactly its
    former values.

    Each layer is merged and unmerged once beforehand, to find the numbers that change. They are
    few: the CPU keeps them with their positions.
    """
    lost = [
        kept
        for layer in model.modules()
        if isinstance(layer, BaseTunerLayer)
        for kept in lost_by_merging(layer)
    ]
    yield
    for weight, places, numbers in lost:
        weight.data.view(-1)[places.to(weight.device)] = numbers.to(weight.device)


@torch.no_grad()
def lost_by_merging(
    layer: BaseTunerLayer,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield each weight of a layer's base that changes, with the positions (N,) and the right
    numbers (N,) there.
    """
    weights = list(layer.get_base_layer().parameters())
    before = [weight.detach().clone() for weight in weights]
    layer.merge()
    layer.unmerge()
    for weight, former in zip(weights, before, strict=True):
        # (N,); peft may have replaced `data`
        places = (weight.data != former).flatten().nonzero().squeeze(1)
        weight.data.copy_(former)
        if len(places):
            yield weight, places.cpu(), former.flatten()[places].cpu()
