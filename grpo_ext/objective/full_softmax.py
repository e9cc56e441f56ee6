"""Log-probs over the whole vocabulary on a CPU: tiles that stay in its cache, each passed over as few times as can be.

The same numbers as TRL's fused head. Its tiles of 4,096 positions and 32,768 tokens suit a GPU, where one kernel folds them; a
CPU reads and writes such a tile some twenty times from main memory.
"""

from __future__ import annotations

from typing import Any

import torch

from grpo_ext.objective.logprob import Projection, add_product, project

TILE_LOGITS = 2**21  # 8 MiB in float32; half and twice of it are within a fifth as fast


def full_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    temperature: float = 1.0,
    projection: Projection | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target and the entropy of its position, under temperature alone.

    Args:
        hidden: (N, H), the model's last hidden states.
        weight: (V, H), of its language model head.
        bias: (V,) or `None`.
        targets: (N,), tokens.
        temperature: that logits are divided by.
        projection: logit scale and soft cap.

    Returns:
        log-probs (N,) and entropies (N,), float32, both with gradient.
    """
    return _FullLogProb.apply(hidden, weight, bias, targets, temperature, projection or Projection())


class _FullLogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        projection: Projection,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)  # entropy is often only logged
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        num = hidden.size(0)
        log_z, logps, entropy = (torch.empty(num, device=hidden.device) for _ in range(3))
        for rows in _tiles(num, weight.size(0)):
            z = projection(project(hidden[rows], weight, bias, dtype))  # (n, V)
            z = z if temperature == 1.0 else z.div_(temperature)
            top = z.amax(-1, keepdim=True)
            z.sub_(top)
            target = z.gather(-1, targets[rows].unsqueeze(-1)).squeeze(-1)
            p = z.exp()
            total = p.sum(-1)
            log_total = total.log()
            logps[rows] = target - log_total
            entropy[rows] = log_total - torch.linalg.vecdot(p, z) / total
            log_z[rows] = log_total + top.squeeze(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, log_z, entropy)
        ctx.plan = (temperature, projection, dtype)
        return logps, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_logps: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, log_z, entropy = ctx.saved_tensors
        temperature, projection, dtype = ctx.plan
        # sums over tiles in float32, whatever the model's type
        grads = [
            torch.zeros(x.shape, device=x.device, dtype=torch.float32) if need else None
            for x, need in zip((hidden, weight, bias), ctx.needs_input_grad[:3], strict=True)
        ]
        for rows in _tiles(hidden.size(0), weight.size(0)):
            logits = projection(project(hidden[rows], weight, bias, dtype))
            log_p = logits / temperature if projection.softcap is not None else logits.div_(temperature)
            log_p = log_p.sub_(log_z[rows].unsqueeze(-1))
            grad = _grad_of_scores(log_p, targets[rows], rows, grad_logps, grad_entropy, entropy)
            grad = projection.grad(grad.div_(temperature) if temperature != 1.0 else grad, logits).to(dtype)
            if grads[0] is not None:
                grads[0][rows] = (grad @ weight.to(dtype)).float()
            if grads[1] is not None:
                add_product(grads[1], grad.t(), hidden[rows].to(dtype))
            if grads[2] is not None:
                grads[2] += grad.sum(0, dtype=torch.float32)
        typed = [g if g is None else g.to(x.dtype) for g, x in zip(grads, (hidden, weight, bias), strict=True)]
        return (*typed, None, None, None)


def _grad_of_scores(
    log_p: torch.Tensor,
    targets: torch.Tensor,
    rows: slice,
    grad_logps: torch.Tensor | None,
    grad_entropy: torch.Tensor | None,
    entropy: torch.Tensor,
) -> torch.Tensor:
    """d/dz: of log p(target), [v = target] - p(v); of the entropy, - p(v) (log p(v) + entropy). Changes `log_p`."""
    if grad_entropy is None:
        assert grad_logps is not None  # backward is called for one of them at least
        grad = log_p.exp_()
        g = grad_logps[rows].float().unsqueeze(-1)
        return grad.mul_(-g).scatter_add_(-1, targets.unsqueeze(-1), g)
    p = log_p.exp()
    grad = log_p.add_(entropy[rows].unsqueeze(-1)).mul_(-grad_entropy[rows].float().unsqueeze(-1))
    if grad_logps is not None:
        grad.sub_(grad_logps[rows].float().unsqueeze(-1))
    grad.mul_(p)
    if grad_logps is not None:
        grad.scatter_add_(-1, targets.unsqueeze(-1), grad_logps[rows].float().unsqueeze(-1))
    return grad


def _tiles(num_positions: int, vocab_size: int) -> list[slice]:
    step = max(1, TILE_LOGITS // vocab_size)
    return [slice(start, min(start + step, num_positions)) for start in range(0, num_positions, step)]
