"""One optimizer of Muon for the matrices and AdamW for the rest. A tiny model needs half the steps that AdamW takes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon on hidden weight matrices, `torch.optim.AdamW` on embeddings, norms and biases.

    The updates of matrices are those of `torch.optim.Muon`, which computes them in bfloat16. On a CPU without instructions for
    it that takes fifteen times as long as here (`orthogonalized`). Both halves share the learning rate: Muon's updates are
    scaled to the size of AdamW's (arXiv 2502.16982, equation 4). Group 0 is Muon's; only its matrices have the decoupled
    `weight_decay`.
    """

    def __init__(self, model: nn.Module, lr: float, weight_decay: float = 0.0) -> None:
        embeddings = {
            id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
        }
        trained = [p for p in model.parameters() if p.requires_grad]
        matrices = [p for p in trained if p.ndim == 2 and id(p) not in embeddings]
        others = [p for p in trained if p.ndim != 2 or id(p) in embeddings]
        self.adamw = torch.optim.AdamW(others, lr=lr, weight_decay=0.0, betas=(0.9, 0.95))
        muon = {"params": matrices, "lr": lr, "weight_decay": weight_decay}
        super().__init__([muon, *self.adamw.param_groups], {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        muon, adamw = self.param_groups
        # Linked at each step, because loading a checkpoint replaces both the groups and the state.
        self.adamw.param_groups, self.adamw.state = [adamw], self.state
        loss = self.adamw.step(closure)
        for p in [p for p in muon["params"] if p.grad is not None]:
            state = self.state[p]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(p.grad)
            momentum = state["momentum_buffer"].lerp_(p.grad, 1 - MOMENTUM)
            update = orthogonalized(p.grad.lerp(momentum, MOMENTUM))  # Nesterov's momentum
            p.mul_(1 - muon["lr"] * muon["weight_decay"])
            p.add_(update, alpha=-muon["lr"] * 0.2 * max(p.shape) ** 0.5)
        return loss


def orthogonalized(matrix: Tensor) -> Tensor:
    """Return a matrix (M, N) with its singular values moved close to 1, between 0.7 and 1.2 for all but the smallest.

    Five steps of the Newton-Schulz iteration of Jordan et al. (https://kellerjordan.github.io/posts/muon), which applies the
    polynomial 3.4445 s - 4.7750 s^3 + 2.0315 s^5 to each singular value s, after division by the Frobenius norm. Every result
    is rounded to bfloat16, as torch's is; on a CPU the products themselves are of float32.
    """
    products = torch.float32 if matrix.is_cpu else torch.bfloat16

    def rounded(x: Tensor) -> Tensor:
        return x.bfloat16().to(products)

    x = rounded(matrix.T if len(matrix) > matrix.size(1) else matrix)  # the smaller products
    x = rounded(x / rounded(x.norm()).clamp(min=1e-7))
    for _ in range(5):
        gram = rounded(x @ x.T)
        x = rounded(
            torch.addmm(
                x,
                rounded(torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)),
                x,
                beta=3.4445,
            )
        )
    return x.T if len(matrix) > matrix.size(1) else x
