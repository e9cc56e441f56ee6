"""Log-probs of the policy that sampled: log softmax over the tokens that it could draw, one panel
of logits at a time.

With z = f(hidden W^T + bias) / temperature, where f is the model's logit scale and soft cap, and K
the kept tokens:

    log p(token) = z_token - logsumexp_{v in K} z_v        entropy = - sum_{v in K} p(v) log p(v)

TRL's fused head has tiles of 4,096 positions and 32,768 tokens, which suit the one kernel of a GPU.
A CPU would read and write such a tile about twenty times from main memory, so tiles on a CPU hold
whole rows and fit into its cache.
"""

from dataclasses import dataclass
from typing import Any

import torch

from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.panels import KEPT_LOGITS, add_product, give_back, memory_for, panels
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.warpers import kept_tokens, suppressed_ids


@dataclass(frozen=True)
class Projection:
    """Scale and soft cap of a model's logits."""

    scale: float = 1.0
    softcap: float | None = (
        None  # c in `c tanh(logits / c)`, applied after the scale; `None`: no soft cap
    )

    def __call__(self, logits: torch.Tensor) -> None:
        """Change logits in place."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)

    def grad(self, grad: torch.Tensor, logits: torch.Tensor) -> None:
        """Replace the gradient `grad` of the output `logits` by that of the input."""
        if self.softcap is not None:
            grad.mul_(1 - (logits / self.softcap) ** 2)
        if self.scale != 1.0:
            grad.mul_(self.scale)


def sampling_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    params: SamplingParams,
    kept: KeptSet | None = None,
    projection: Projection | None = None,
) -> tuple[torch.Tensor, torch.Tensor, KeptSet | None]:
    """Return the log-prob of each target and the entropy of its position, under the distribution it
    was sampled from.

    Args:
        hidden: (N, H), the model's last hidden states.
        weight: (V, H), of the language model head.
        bias: (V,) or `None`.
        targets: (N,), the sampled tokens.
        params: the sampling parameters.
        kept: the tokens that truncation kept; `None`: they are computed from the logits. A target
            always counts as kept, so rounding never gives a sampled token probability 0.
        projection: logit scale and soft cap.

    Returns:
        log-probs (N,) and entropies (N,), float32, both with gradient; the kept tokens that were
        used, `None` without truncation.
    """
    kept = kept if params.truncated else None
    return _LogProb.apply(hidden, weight, bias, targets, params, kept, projection or Projection())


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        params: SamplingParams,
        kept: KeptSet | None,
        projection: Projection,
    ) -> tuple[torch.Tensor, torch.Tensor, KeptSet | None]:
        ctx.set_materialize_grads(False)  # entropy is often only logged
        device = hidden.device.type
        dtype = (
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        )
        finds = params.truncated and kept is None
        found = (
            [KeptSet.from_mask(torch.zeros(0, weight.size(0), dtype=torch.bool))] if finds else []
        )
        log_z, logps, entropy = (
            torch.empty(hidden.size(0), device=hidden.device) for _ in range(3)
        )
        few = (
            hidden.size(0) * weight.size(0) <= KEPT_LOGITS
            and device == "cpu"
            and any(ctx.needs_input_grad[:3])
        )
        plain = projection.softcap is None and dtype == weight.dtype == torch.float32
        # p(v) - [v = target]
        errors = memory_for(hidden.size(0), weight.size(0)) if few and plain else None
        for _, logits, tiles in panels(hidden, weight, bias, dtype, params, errors):
            projection(logits)
            for rows, z in tiles:  # (n, V)
                target = targets[rows].unsqueeze(-1)  # (n, 1)
                z = z if params.temperature == 1.0 else z.div_(params.temperature)
                mask = (
                    kept_tokens(z, params).scatter_(-1, target, True)
                    if finds
                    else _mask(kept, rows, z.device)
                )
                if finds and mask is not None:
                    found.append(KeptSet.from_mask(mask))
                gone = _gone(target, mask, z, params)
                scores = z if gone is None else z.masked_fill(gone, -torch.inf)
                p = torch.softmax(scores, -1)
                top = scores.amax(-1, keepdim=True)  # (n, 1)
                log_total = -p.amax(-1).log()  # (n,); the top score has p = 1 / total
                logps[rows] = z.sub_(top).gather(-1, target).squeeze(-1) - log_total
                entropy[rows] = log_total - z.mul_(p).sum(
                    -1
                )  # autocast would round a dot product to bfloat16
                log_z[rows] = log_total + top.squeeze(-1)
                if errors is not None:
                    z.copy_(p.scatter_add_(-1, target, p.new_full(target.shape, -1.0)))
                del z, scores, p, mask, gone
            del logits, tiles
        kept = KeptSet.cat(found) if finds else kept
        ctx.save_for_backward(hidden, weight, bias, targets, log_z, entropy, errors)
        ctx.plan = (params, kept, projection, dtype)
        return logps, entropy, kept

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, grad_logps: torch.Tensor | None, grad_entropy: torch.Tensor | None, _: None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, log_z, entropy, errors = ctx.saved_tensors
        params, kept, projection, dtype = ctx.plan
        if errors is not None and grad_entropy is None:
            assert grad_logps is not None  # backward is called for at least one of them
            scaled = grad_logps.mul(-projection.scale / params.temperature).unsqueeze(-1)  # (N, 1)
            needs = ctx.needs_input_grad
            by_input = (
                (errors @ weight).mul_(scaled) if needs[0] else None,
                errors.t() @ (hidden * scaled) if needs[1] else None,
                (errors.t() @ scaled).squeeze(-1) if needs[2] else None,
            )
            give_back(
                errors
            )  # if the graph runs once more after another call wrote here, autograd refuses it
            return (*by_input, *[None] * 4)
        # sums over panels in float32, regardless of the model's type
        grads = [
            torch.zeros(x.shape, device=x.device, dtype=torch.float32) if need else None
            for x, need in zip((hidden, weight, bias), ctx.needs_input_grad[:3], strict=True)
        ]
        for panel, logits, tiles in panels(hidden, weight, bias, dtype, params):
            projection(logits)
            for rows, z in tiles:
                target = targets[rows].unsqueeze(-1)
                capped = z.clone() if projection.softcap is not None else z
                gone = _gone(
                    target, _mask(kept, rows, z.device), z.div_(params.temperature), params
                )
                log_p = z.sub_(log_z[rows].unsqueeze(-1))
                g, h = (
                    x if x is None else x[rows].float().unsqueeze(-1)
                    for x in (grad_logps, grad_entropy)
                )
                _grad_of_scores(log_p, gone, target, g, h, entropy[rows].unsqueeze(-1))
                projection.grad(z.div_(params.temperature), capped)
            grad = logits.to(dtype)  # of the logits, which each tile has replaced
            if grads[0] is not None:
                grads[0][panel] = (grad @ weight.to(dtype)).float()
            if grads[1] is not None:
                add_product(grads[1], grad.t(), hidden[panel].to(dtype))
            if grads[2] is not None:
                grads[2] += grad.sum(0, dtype=torch.float32)
        typed = [
            g if g is None else g.to(x.dtype)
            for g, x in zip(grads, (hidden, weight, bias), strict=True)
        ]
        return (*typed, None, None, None, None)


def _grad_of_scores(
    log_p: torch.Tensor,
    gone: torch.Tensor | None,
    target: torch.Tensor,
    g: torch.Tensor | None,
    h: torch.Tensor | None,
    entropy: torch.Tensor,
) -> None:
    """Replace `log_p` by the gradient of the scores z: of g log p(target), g ([v = target] - p(v));
    of h entropy,
    - h p(v) (log p(v) + entropy)."""
    if h is None:
        assert g is not None  # backward is called for at least one of them
        _without(log_p.exp_(), gone).mul_(-g)
    else:
        p = _without(log_p.exp(), gone)
        grad = log_p.add_(entropy).mul_(-h)
        (grad if g is None else grad.sub_(g)).mul_(p)
    if g is not None:
        log_p.scatter_add_(-1, target, g)


def _mask(kept: KeptSet | None, rows: slice, device: torch.device) -> torch.Tensor | None:
    return None if kept is None else kept.select(torch.arange(rows.start, rows.stop)).mask(device)


def _gone(
    target: torch.Tensor, kept: torch.Tensor | None, z: torch.Tensor, params: SamplingParams
) -> torch.Tensor | None:
    """Return (n, V), bool, the tokens that could not be drawn; `None`: all could. A target (n, 1)
    always could.
    """
    if kept is not None:
        return (~kept).scatter_(-1, target, False)
    if not params.suppressed:
        return None
    gone = torch.zeros_like(z, dtype=torch.bool).index_fill_(-1, suppressed_ids(z, params), True)
    return gone.scatter_(-1, target, False)


def _without(p: torch.Tensor, gone: torch.Tensor | None) -> torch.Tensor:
    """Set p to 0 after the exponential: the exponential of a very low score takes ten times as
    long.
    """
    return p if gone is None else p.masked_fill_(gone, 0.0)
