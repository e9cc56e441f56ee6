"""Log-probs of the policy that sampled: log softmax over the tokens that it could draw, one tile of logits at a time.

With z = f(hidden W^T + bias) / temperature, where f is the model's logit scale and soft cap, and K the kept tokens:

    log p(token) = z_token - logsumexp_{v in K} z_v        entropy = - sum_{v in K} p(v) log p(v)

TRL's fused head has tiles of 4,096 positions and 32,768 tokens, which suit the one kernel of a GPU. A CPU would read and write
such a tile about twenty times from main memory, so tiles here hold whole rows and fit into its cache.
"""

from dataclasses import dataclass
from typing import Any

import torch

from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.warpers import kept_tokens, suppressed_ids

TILE_LOGITS = 2**21  # of a tile on a CPU: 8 MiB in float32; half and twice this size differ by at most a fifth in speed
# Sorting a tile takes about 30 bytes per logit. With this many logits per position it takes less memory than the
# (positions, 32768) tile of TRL's fused head, at 2 bytes per logit.
_LOGITS_PER_POSITION = 2048
_MAX_POSITIONS = 4096
_MIN_TILE = 2**20
_KEPT_LOGITS = 2**25  # a CPU keeps the probabilities of a call with at most so many logits for the backward pass: 128 MiB
_spare: list[torch.Tensor] = []  # its memory after the backward pass: the first writes to new memory take as long as softmax


@dataclass(frozen=True)
class Projection:
    """Scale and soft cap of a model's logits."""

    scale: float = 1.0
    softcap: float | None = None  # c in `c tanh(logits / c)`, applied after the scale; `None`: no soft cap

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits.mul_(self.scale) if self.scale != 1.0 else logits
        return logits if self.softcap is None else logits.div_(self.softcap).tanh_().mul_(self.softcap)

    def grad(self, grad: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the input, from the gradient `grad` of the output `logits`; changes `grad` in place."""
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
) -> tuple[torch.Tensor, torch.Tensor, KeptSet | None]:
    """Return the log-prob of each target and the entropy of its position, under the distribution it was sampled from.

    Args:
        hidden: (N, H), the model's last hidden states.
        weight: (V, H), of the language model head.
        bias: (V,) or `None`.
        targets: (N,), the sampled tokens.
        params: the sampling parameters.
        kept: the tokens that truncation kept; `None`: they are computed from the logits. A target always counts as kept, so
            rounding never gives a sampled token probability 0.
        projection: logit scale and soft cap.

    Returns:
        log-probs (N,) and entropies (N,), float32, both with gradient; the kept tokens that were used, `None` without
        truncation.
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
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        finds = params.truncated and kept is None
        found = [KeptSet.from_mask(torch.zeros(0, weight.size(0), dtype=torch.bool))] if finds else []
        log_z, logps, entropy = (torch.empty(hidden.size(0), device=hidden.device) for _ in range(3))
        few = hidden.size(0) * weight.size(0) <= _KEPT_LOGITS and device == "cpu" and any(ctx.needs_input_grad[:3])
        plain = projection.softcap is None and dtype == weight.dtype == torch.float32
        errors = _memory(hidden.size(0), weight.size(0)) if few and plain else None  # p(v) - [v = target]
        for rows in _tiles(hidden, weight, params):
            target = targets[rows].unsqueeze(-1)  # (n, 1)
            z = projection(_project(hidden[rows], weight, bias, dtype))  # (n, V)
            z = z if params.temperature == 1.0 else z.div_(params.temperature)
            mask = kept_tokens(z, params).scatter_(-1, target, True) if finds else _mask(kept, rows, z.device)
            if finds and mask is not None:
                found.append(KeptSet.from_mask(mask))
            gone = _gone(target, mask, z, params)
            scores = z if gone is None else z.masked_fill(gone, -torch.inf)
            p = torch.softmax(scores, -1) if errors is None else torch.softmax(scores, -1, out=errors[rows])
            top, log_total = scores.amax(-1, keepdim=True), -p.amax(-1).log()  # of the top score, p is 1 / total
            logps[rows] = z.sub_(top).gather(-1, target).squeeze(-1) - log_total
            entropy[rows] = log_total - z.mul_(p).sum(-1)  # autocast would round a dot product to bfloat16
            log_z[rows] = log_total + top.squeeze(-1)
            if errors is not None:
                p.scatter_add_(-1, target, p.new_full(target.shape, -1.0))
            del z, scores, p, mask, gone
        kept = KeptSet.cat(found) if finds else kept
        ctx.save_for_backward(hidden, weight, bias, targets, log_z, entropy, errors)
        ctx.plan = (params, kept, projection, dtype)
        return logps, entropy, kept

    @staticmethod
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
            if not _spare or _spare[0].untyped_storage().nbytes() < errors.untyped_storage().nbytes():
                _spare[:] = [errors]  # if the graph runs once more after another call wrote here, autograd refuses it
            return (*by_input, *[None] * 4)
        # sums over tiles in float32, regardless of the model's type
        grads = [
            torch.zeros(x.shape, device=x.device, dtype=torch.float32) if need else None
            for x, need in zip((hidden, weight, bias), ctx.needs_input_grad[:3], strict=True)
        ]
        for rows in _tiles(hidden, weight, params):
            target = targets[rows].unsqueeze(-1)
            logits = projection(_project(hidden[rows], weight, bias, dtype))
            z = logits / params.temperature if projection.softcap is not None else logits.div_(params.temperature)
            gone = _gone(target, _mask(kept, rows, z.device), z, params)
            log_p = z.sub_(log_z[rows].unsqueeze(-1))
            g, h = (x if x is None else x[rows].float().unsqueeze(-1) for x in (grad_logps, grad_entropy))
            grad = _grad_of_scores(log_p, gone, target, g, h, entropy[rows].unsqueeze(-1))
            grad = grad.div_(params.temperature) if params.temperature != 1.0 else grad
            grad = projection.grad(grad, logits).to(dtype)
            if grads[0] is not None:
                grads[0][rows] = (grad @ weight.to(dtype)).float()
            if grads[1] is not None:
                _add_product(grads[1], grad.t(), hidden[rows].to(dtype))
            if grads[2] is not None:
                grads[2] += grad.sum(0, dtype=torch.float32)
        typed = [g if g is None else g.to(x.dtype) for g, x in zip(grads, (hidden, weight, bias), strict=True)]
        return (*typed, None, None, None, None)


def _grad_of_scores(
    log_p: torch.Tensor,
    gone: torch.Tensor | None,
    target: torch.Tensor,
    g: torch.Tensor | None,
    h: torch.Tensor | None,
    entropy: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of the scores z: of g log p(target), g ([v = target] - p(v)); of h entropy,
    - h p(v) (log p(v) + entropy). Changes `log_p` in place."""
    if h is None:
        assert g is not None  # backward is called for at least one of them
        grad = _without(log_p.exp_(), gone).mul_(-g)
    else:
        p = _without(log_p.exp(), gone)
        grad = log_p.add_(entropy).mul_(-h)
        grad = (grad if g is None else grad.sub_(g)).mul_(p)
    return grad if g is None else grad.scatter_add_(-1, target, g)


def _tiles(hidden: torch.Tensor, weight: torch.Tensor, params: SamplingParams) -> list[slice]:
    num, logits = hidden.size(0), TILE_LOGITS
    if params.truncated or hidden.device.type != "cpu":
        logits = max(_MIN_TILE, min(num, _MAX_POSITIONS) * _LOGITS_PER_POSITION)
    step = max(1, logits // weight.size(0))
    return [slice(start, min(start + step, num)) for start in range(0, num, step)]


def _memory(rows: int, width: int) -> torch.Tensor:
    """Return an uninitialized (rows, width), float32, in spare memory if it suffices."""
    if not _spare or not rows or _spare[0].untyped_storage().nbytes() < 4 * rows * width:
        return torch.empty(rows, width)
    return _spare.pop().as_strided((rows, width), (width, 1), 0)


def _mask(kept: KeptSet | None, rows: slice, device: torch.device) -> torch.Tensor | None:
    return None if kept is None else kept.select(torch.arange(rows.start, rows.stop)).mask(device)


def _gone(target: torch.Tensor, kept: torch.Tensor | None, z: torch.Tensor, params: SamplingParams) -> torch.Tensor | None:
    """Return (n, V), bool, the tokens that could not be drawn; `None`: all could. A target (n, 1) always could."""
    if kept is not None:
        return (~kept).scatter_(-1, target, False)
    if not params.suppressed:
        return None
    gone = torch.zeros_like(z, dtype=torch.bool).index_fill_(-1, suppressed_ids(z, params), True)
    return gone.scatter_(-1, target, False)


def _without(p: torch.Tensor, gone: torch.Tensor | None) -> torch.Tensor:
    """Set p to 0 after the exponential: the exponential of a very low score takes ten times as long."""
    return p if gone is None else p.masked_fill_(gone, 0.0)


def _project(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Return the logits (n, V) of a tile: rounded to the model's type as the sampler rounds them, then float32."""
    bias = None if bias is None else bias.to(dtype)
    return torch.nn.functional.linear(hidden.to(dtype), weight.to(dtype), bias).float()


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Compute `total += a @ b` in float32."""
    if total.is_cuda and a.dtype != torch.float32:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(a.float(), b.float())
