"""Log-probs under the sampling distribution: log softmax over the tokens that could be drawn.

One block of logits is computed at a time. Let z = f(hidden W^T + bias) / temperature, where f
applies the model's logit scale and soft cap, and let K be the set of kept tokens. Then

    log p(token) = z_token - logsumexp_{v in K} z_v        entropy = - sum_{v in K} p(v) log p(v)

TRL's fused head uses tiles of 4,096 positions and 32,768 tokens, which suit a single GPU kernel. A
CPU would read and write such a tile about twenty times in main memory, so tiles on a CPU hold whole
rows and, without truncation, fit into its cache.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_ext.common.projection import computing_dtype
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logit_blocks import add_product, give_back, logit_blocks, memory_for
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.warpers import kept_tokens, suppressed_ids

# on a CPU, a call with at most this many logits saves its probabilities for the backward pass
MAX_SAVED_LOGITS = 2**25  # 128 MiB


@dataclass(frozen=True)
class LogitTransform:
    """The scale and the soft cap that a model applies to its logits."""

    scale: float = 1.0
    # c in `c tanh(logits / c)`, applied after the scale; `None` if the model has no soft cap
    softcap: float | None = None

    def apply_(self, logits: Tensor) -> None:
        """Apply the scale and the soft cap to `logits` in place."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        if self.softcap is not None:
            logits.div_(self.softcap)
            logits.tanh_()
            logits.mul_(self.softcap)

    def grad_(self, grad: Tensor, logits: Tensor) -> None:
        """Backpropagate through `apply_`, changing `grad` in place.

        Args:
            grad: (n, V), the gradient with respect to the output of `apply_`, which becomes the
                gradient with respect to its input.
            logits: (n, V), the output of `apply_`.
        """
        if self.softcap is not None:
            grad.mul_(1 - (logits / self.softcap) ** 2)
        if self.scale != 1.0:
            grad.mul_(self.scale)


def sampling_log_probs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    params: SamplingParams,
    kept: KeptSet | None = None,
    logit_transform: LogitTransform | None = None,
) -> tuple[Tensor, Tensor, KeptSet | None]:
    """Return log-probs and entropies under the distribution that the targets were sampled from.

    Args:
        hidden: (N, H), the model's last hidden states.
        weight: (V, H), the weight of the language model head.
        bias: (V,), the bias of the head; `None` if it has none.
        targets: (N,), the sampled tokens.
        params: the sampling parameters.
        kept: the tokens that truncation kept; if `None`, they are computed from the logits. A
            target always counts as kept, so rounding never gives a sampled token probability 0.
            Without truncation, `kept` is ignored.
        logit_transform: the scale and soft cap to apply to the logits; `None` applies neither.

    Returns:
        The log-probs (N,) and the entropies (N,), both float32 with gradient, and the kept tokens
        that were used (`None` without truncation).
    """
    kept_set = kept if params.truncated else None
    logit_transform = logit_transform or LogitTransform()
    return _LogProb.apply(hidden, weight, bias, targets, params, kept_set, logit_transform)


class _LogProb(torch.autograd.Function):
    """The autograd function behind `sampling_log_probs`, with two kinds of backward pass.

    On a CPU, a float32 call with few logits and no soft cap saves p(v) - [v = target] in the
    forward pass, so that the gradient of the log-probs needs only two matrix multiplications. In
    all other cases, and for the gradient of the entropy, the backward pass computes the logits
    again, block by block.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        params: SamplingParams,
        kept: KeptSet | None,
        logit_transform: LogitTransform,
    ) -> tuple[Tensor, Tensor, KeptSet | None]:
        ctx.set_materialize_grads(False)  # often, entropy is only logged and has no gradient
        num_positions = hidden.size(0)  # N
        vocab_size = weight.size(0)  # V
        device = hidden.device.type
        dtype = computing_dtype(hidden)
        finds_kept = params.truncated and kept is None
        kept_parts: list[KeptSet] = []
        if finds_kept:  # `KeptSet.cat` needs one part even if there are no positions
            no_positions = torch.zeros(0, vocab_size, dtype=torch.bool)
            kept_parts.append(KeptSet.from_mask(no_positions))
        # The log of the normalizer is stored in two parts. For a top score of 100, their sum in
        # float32 would be off by up to 4e-6, and so would the gradient of a token with probability
        # near 1.
        tops = torch.empty(num_positions, device=hidden.device)  # (N,), the top scores
        log_totals = torch.empty(num_positions, device=hidden.device)  # (N,), of exp(score - top)
        logps = torch.empty(num_positions, device=hidden.device)  # (N,)
        entropy = torch.empty(num_positions, device=hidden.device)  # (N,)
        # (N, V), first the logits, then p(v) - [v = target], which the backward pass uses
        prob_minus_onehot = None
        if (
            device == "cpu"
            and num_positions * vocab_size <= MAX_SAVED_LOGITS
            and any(ctx.needs_input_grad[:3])
            and logit_transform.softcap is None
            and dtype == weight.dtype == torch.float32
        ):
            prob_minus_onehot = memory_for(num_positions, vocab_size)
        blocks = logit_blocks(hidden, weight, bias, dtype, params, out=prob_minus_onehot)
        for _, logits, tiles in blocks:
            logit_transform.apply_(logits)
            for rows, z in tiles:  # (n, V)
                target = targets[rows].unsqueeze(-1)  # (n, 1)
                if params.temperature != 1.0:
                    z.div_(params.temperature)
                mask = _mask(kept, rows, z.device)  # (n, V)
                if finds_kept:
                    mask = kept_tokens(z, params).scatter_(-1, target, True)
                    kept_parts.append(KeptSet.from_mask(mask))
                removed = _removed_tokens(target, mask, z, params)
                scores = z if removed is None else z.masked_fill(removed, -torch.inf)
                p = torch.softmax(scores, -1)  # (n, V)
                top = scores.amax(-1, keepdim=True)  # (n, 1)
                log_total = -p.amax(-1).log()  # (n,); the top score has p = 1 / total
                tops[rows] = top.squeeze(-1)
                log_totals[rows] = log_total
                z.sub_(top)
                target_score = z.gather(-1, target).squeeze(-1)  # (n,)
                logps[rows] = target_score - log_total
                # autocast would round a dot product to bfloat16
                mean_score = z.mul_(p).sum(-1)  # (n,)
                entropy[rows] = log_total - mean_score
                if prob_minus_onehot is not None:
                    minus_one = p.new_full(target.shape, -1.0)
                    p.scatter_add_(-1, target, minus_one)
                    z.copy_(p)
                del z, scores, p, mask, removed
            del logits, tiles
        used = KeptSet.cat(kept_parts) if finds_kept else kept
        normalizer = (tops, log_totals)
        ctx.save_for_backward(
            hidden, weight, bias, targets, *normalizer, entropy, prob_minus_onehot
        )
        ctx.plan = (params, used, logit_transform, dtype)
        return logps, entropy, used

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any,
        grad_logps: Tensor | None,
        grad_entropy: Tensor | None,
        _: None,
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, *normalizer, entropy, prob_minus_onehot = ctx.saved_tensors
        tops, log_totals = normalizer
        params, kept_set, logit_transform, dtype = ctx.plan
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if prob_minus_onehot is not None and grad_entropy is None:
            assert grad_logps is not None  # backward is called for at least one of them
            factor = -logit_transform.scale / params.temperature
            scaled = grad_logps.mul(factor).unsqueeze(-1)  # (N, 1)
            grad_hidden = (prob_minus_onehot @ weight).mul_(scaled) if needs_hidden else None
            grad_weight = prob_minus_onehot.t() @ (hidden * scaled) if needs_weight else None
            grad_bias = (prob_minus_onehot.t() @ scaled).squeeze(-1) if needs_bias else None
            # If the graph runs again after another call has overwritten this memory, autograd
            # raises an error.
            give_back(prob_minus_onehot)
            return grad_hidden, grad_weight, grad_bias, None, None, None, None
        # Sums over blocks are float32, regardless of the model's dtype.
        grad_hidden = _float_zeros(hidden) if needs_hidden else None  # (N, H)
        grad_weight = _float_zeros(weight) if needs_weight else None  # (V, H)
        grad_bias = _float_zeros(bias) if needs_bias else None  # (V,)
        for block, logits, tiles in logit_blocks(hidden, weight, bias, dtype, params):
            logit_transform.apply_(logits)
            for rows, z in tiles:  # (n, V)
                target = targets[rows].unsqueeze(-1)  # (n, 1)
                capped = z.clone() if logit_transform.softcap is not None else z
                if params.temperature != 1.0:
                    z.div_(params.temperature)
                mask = _mask(kept_set, rows, z.device)
                removed = _removed_tokens(target, mask, z, params)
                log_p = z.sub_(tops[rows].unsqueeze(-1)).sub_(log_totals[rows].unsqueeze(-1))
                _grad_of_scores(
                    log_p,
                    removed,
                    target,
                    g=_column(grad_logps, rows),
                    h=_column(grad_entropy, rows),
                    entropy=entropy[rows].unsqueeze(-1),
                )
                if params.temperature != 1.0:  # z is now the gradient of the scores
                    z.div_(params.temperature)
                logit_transform.grad_(z, capped)
            grad = logits.to(dtype)  # (n, V); each tile now holds the gradient of its logits
            if grad_hidden is not None:
                grad_hidden[block] = (grad @ weight.to(dtype)).float()
            if grad_weight is not None:
                add_product(grad_weight, grad.t(), hidden[block].to(dtype))
            if grad_bias is not None:
                grad_bias += grad.sum(0, dtype=torch.float32)
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
        )


def _grad_of_scores(
    log_p: Tensor,
    removed: Tensor | None,
    target: Tensor,
    g: Tensor | None,
    h: Tensor | None,
    entropy: Tensor,
) -> None:
    """Overwrite `log_p` with the gradient with respect to the scores z, (n, V).

    The incoming gradient g of log p(target) contributes g ([v = target] - p(v)); the incoming
    gradient h of the entropy contributes - h p(v) (log p(v) + entropy).

    Args:
        log_p: (n, V), the log-probs of all tokens.
        removed: (n, V), bool, the tokens that could not be drawn; `None` if all could be drawn.
        target: (n, 1), the sampled tokens.
        g: (n, 1), or `None` if there is no gradient of log p(target).
        h: (n, 1), or `None` if there is no gradient of the entropy.
        entropy: (n, 1), the entropies.
    """
    if h is None:
        assert g is not None  # backward is called for at least one of them
        p = _zero_removed(log_p.exp_(), removed)
        p.mul_(-g)
    else:
        p = _zero_removed(log_p.exp(), removed)
        grad = log_p.add_(entropy).mul_(-h)
        if g is not None:
            grad.sub_(g)
        grad.mul_(p)
    if g is not None:
        log_p.scatter_add_(-1, target, g)


def _mask(kept: KeptSet | None, rows: slice, device: torch.device) -> Tensor | None:
    """Return a bool mask (n, V), true for tokens kept at `rows`; `None` if `kept` is `None`."""
    if kept is None:
        return None
    positions = torch.arange(rows.start, rows.stop)
    return kept.select(positions).mask(device)


def _column(grad: Tensor | None, rows: slice) -> Tensor | None:
    """Return `grad` at the positions `rows` as float32 (n, 1); `None` if `grad` is `None`."""
    if grad is None:
        return None
    return grad[rows].float().unsqueeze(-1)


def _float_zeros(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape, device=tensor.device, dtype=torch.float32)


def _removed_tokens(
    target: Tensor,
    kept: Tensor | None,
    z: Tensor,
    params: SamplingParams,
) -> Tensor | None:
    """Return a bool mask (n, V), true for tokens that could not be drawn.

    Return `None` if `kept` is `None` and no tokens are suppressed.

    Args:
        target: (n, 1), the sampled tokens, which never count as removed.
        kept: (n, V), bool, the tokens that truncation kept; `None` without truncation.
        z: (n, V), the scores; only their shape and device matter.
        params: the sampling parameters; their suppressed tokens are used only if `kept` is `None`.
    """
    if kept is not None:
        return (~kept).scatter_(-1, target, False)
    if not params.suppressed:
        return None
    removed = torch.zeros_like(z, dtype=torch.bool)
    removed.index_fill_(-1, suppressed_ids(z, params), True)
    return removed.scatter_(-1, target, False)


def _zero_removed(p: Tensor, removed: Tensor | None) -> Tensor:
    """Set p to 0 for removed tokens, in place.

    This is done after the exponential instead of setting their scores to -inf before it, since the
    exponential of a very low score takes about ten times as long.
    """
    if removed is None:
        return p
    return p.masked_fill_(removed, 0.0)
