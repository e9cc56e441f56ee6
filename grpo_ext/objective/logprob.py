"""Log-probs of the policy that sampled: log softmax over the tokens that truncation kept, never more than a tile of logits.

With z = f(hidden W^T + bias) / temperature, where f is the model's logit scale and soft cap, and K the kept set:

    log p(token) = z_token - logsumexp_{v in K} z_v        entropy = - sum_{v in K} p(v) log p(v)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.warpers import kept_tokens

# A tile holds whole rows of the vocabulary and takes about 30 bytes a logit while it is sorted. This many logits a position
# keep it below the (positions, 32768) tile, 2 bytes a logit, of TRL's fused head.
_LOGITS_PER_POSITION = 2048
_MAX_POSITIONS = 4096
_MIN_TILE = 2**20


@dataclass(frozen=True)
class Projection:
    """What a model does to its logits.

    Args:
        scale: factor on the logits.
        softcap: c in `c tanh(logits / c)`, applied after the factor; `None` for models without one.
    """

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits.mul_(self.scale) if self.scale != 1.0 else logits
        return logits if self.softcap is None else logits.div_(self.softcap).tanh_().mul_(self.softcap)

    def grad(self, grad: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """The gradient of the projection's output `logits` as one of its input; changes `grad`."""
        if self.softcap is not None:
            grad = grad.mul_(1 - (logits / self.softcap) ** 2)
        return grad.mul_(self.scale) if self.scale != 1.0 else grad


def sampling_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    params: SamplingParams,
    kept: KeptSet | None = None,
    projection: Projection | None = None,
) -> tuple[torch.Tensor, torch.Tensor, KeptSet]:
    """Log-prob of each target and the entropy of its position, under temperature and truncation.

    Args:
        hidden: (N, H), the model's last hidden states.
        weight: (V, H), of its language model head.
        bias: (V,) or `None`.
        targets: (N,), the sampled tokens.
        params: how they were sampled.
        kept: the tokens that the sampler kept; `None` takes those that these logits give. A target always counts as kept,
            so that rounding never gives a sampled token probability 0.
        projection: logit scale and soft cap.

    Returns:
        log-probs (N,) and entropies (N,), float32, both with gradient; the kept tokens that were used.
    """
    holder: list[KeptSet] = [] if kept is None else [kept]
    logps, entropy = _SamplingLogProb.apply(hidden, weight, bias, targets, params, holder, projection or Projection())
    return logps, entropy, holder[0]


def tile_rows(num_positions: int, vocab_size: int) -> int:
    """Positions a tile."""
    return max(1, max(_MIN_TILE, min(num_positions, _MAX_POSITIONS) * _LOGITS_PER_POSITION) // vocab_size)


class _SamplingLogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        params: SamplingParams,
        holder: list[KeptSet],
        projection: Projection,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)  # entropy is often only logged
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        num = hidden.size(0)
        given = holder[0] if holder else None
        found: list[KeptSet] = []
        log_z, logps, entropy = (torch.zeros(num, device=hidden.device) for _ in range(3))
        for rows in _tiles(num, weight.size(0)):
            logits = projection(project(hidden[rows], weight, bias, dtype)).div_(params.temperature)
            kept = kept_tokens(logits, params) if given is None else _mask(given, rows, hidden.device)
            kept.scatter_(-1, targets[rows].unsqueeze(-1), True)
            if given is None:
                found.append(KeptSet.from_mask(kept))
            logits.masked_fill_(~kept, -torch.inf)
            log_z[rows] = logits.logsumexp(-1)
            logps[rows] = logits.gather(-1, targets[rows].unsqueeze(-1)).squeeze(-1) - log_z[rows]
            log_p = logits.sub_(log_z[rows].unsqueeze(-1))
            entropy[rows] = -(log_p.exp() * log_p.masked_fill_(~kept, 0.0)).sum(-1)
            del logits, log_p, kept
        if given is None:
            holder.append(KeptSet.cat(found) if found else _nothing(weight.size(0)))
        ctx.save_for_backward(hidden, weight, bias, targets, log_z, entropy)
        ctx.plan = (params, holder[0], projection, dtype)
        return logps, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_logps: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, log_z, entropy = ctx.saved_tensors
        params, given, projection, dtype = ctx.plan
        needs = ctx.needs_input_grad[:3]
        # sums over tiles in float32, whatever the model's type
        grads = [
            torch.zeros(x.shape, device=x.device, dtype=torch.float32) if need else None
            for x, need in zip((hidden, weight, bias), needs, strict=True)
        ]
        for rows in _tiles(hidden.size(0), weight.size(0)):
            logits = projection(project(hidden[rows], weight, bias, dtype))
            kept = _mask(given, rows, hidden.device)
            kept.scatter_(-1, targets[rows].unsqueeze(-1), True)
            log_p = (logits / params.temperature).sub_(log_z[rows].unsqueeze(-1))
            p = log_p.exp().masked_fill_(~kept, 0.0)
            grad = torch.zeros_like(p)
            if grad_logps is not None:  # d log p(target) / dz_v = [v = target] - p(v)
                g = grad_logps[rows].float().unsqueeze(-1)
                grad.sub_(g * p).scatter_add_(-1, targets[rows].unsqueeze(-1), g)
            if grad_entropy is not None:  # d entropy / dz_v = - p(v) (log p(v) + entropy)
                g = grad_entropy[rows].float().unsqueeze(-1)
                grad.sub_(p.mul_(log_p.add_(entropy[rows].unsqueeze(-1))).mul_(g))
            grad = projection.grad(grad.div_(params.temperature), logits).to(dtype)
            if grads[0] is not None:
                grads[0][rows] = (grad @ weight.to(dtype)).float()
            if grads[1] is not None:
                add_product(grads[1], grad.t(), hidden[rows].to(dtype))
            if grads[2] is not None:
                grads[2] += grad.sum(0, dtype=torch.float32)
        typed = [g if g is None else g.to(x.dtype) for g, x in zip(grads, (hidden, weight, bias), strict=True)]
        return (*typed, None, None, None, None)


def _tiles(num_positions: int, vocab_size: int) -> list[slice]:
    step = tile_rows(num_positions, vocab_size)
    return [slice(start, min(start + step, num_positions)) for start in range(0, num_positions, step)]


def project(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Logits of a tile (n, V): rounded to the model's type, as the sampler's were, then float32."""
    return torch.nn.functional.linear(
        hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    ).float()


def add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """`total += a @ b` in float32."""
    if a.dtype == torch.float32:
        total.addmm_(a, b)
    elif total.is_cuda:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(a.float(), b.float())


def _mask(kept: KeptSet, rows: slice, device: torch.device) -> torch.Tensor:
    return kept.select(torch.arange(rows.start, rows.stop)).mask(device)


def _nothing(vocab_size: int) -> KeptSet:
    return KeptSet.from_mask(torch.zeros(0, vocab_size, dtype=torch.bool))
