"""One optimizer of Muon for the matrices and AdamW for the rest. A tiny model needs half the steps that AdamW takes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class MuonWithAdamW(torch.optim.Optimizer):
    """`torch.optim.Muon` on hidden weight matrices, `torch.optim.AdamW` on embeddings, norms and biases.

    Both share the learning rate: Muon scales its updates to the size of AdamW's (`match_rms_adamw`). Group 0 is Muon's, and
    only its matrices have the decoupled `weight_decay`.
    """

    def __init__(self, model: nn.Module, lr: float, weight_decay: float = 0.0) -> None:
        embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        trained = [p for p in model.parameters() if p.requires_grad]
        matrices = [p for p in trained if p.ndim == 2 and id(p) not in embeddings]
        others = [p for p in trained if p.ndim != 2 or id(p) in embeddings]
        self.muon = torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, momentum=0.95, adjust_lr_fn="match_rms_adamw")
        self.adamw = torch.optim.AdamW(others, lr=lr, weight_decay=0.0, betas=(0.9, 0.95))
        super().__init__([*self.muon.param_groups, *self.adamw.param_groups], {})

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        # Linked at each step, because loading a checkpoint replaces both the groups and the state.
        for optimizer, group in zip((self.muon, self.adamw), self.param_groups, strict=True):
            optimizer.param_groups, optimizer.state = [group], self.state
        loss = self.muon.step(closure)
        self.adamw.step()
        return loss
