"""Measures of formulas, without runs: the weight of a token, the bias of a KL estimator."""

from collections.abc import Sequence

from grpo_ext.reproduce.measures.base import Figure, Runs, exact, measure

POLICY = (0.5, 0.3, 0.15, 0.05)
REFERENCE = (0.35, 0.3, 0.2, 0.15)


@measure
def token_weight(runs: Runs, loss: str, length: int, against: int) -> Figure:
    """The weight of a token in a completion of one length, relative to one of another length.

    Args:
        runs: none.
        loss: a name of a loss.
        length: the tokens of the completion.
        against: the tokens of the other one.
    """
    weight, other_weight = token_weights(loss, (length, against))
    return exact(weight / other_weight)


def token_weights(loss: str, lengths: Sequence[int]) -> list[float]:
    """Return the weight of a token in completions of these lengths.

    It is the gradient of the loss's aggregation.
    """
    import torch

    from grpo_ext.objective.aggregate import StepCounts, aggregate
    from grpo_ext.objective.policy import get_loss

    longest = max(lengths)
    mask = (torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)).float()  # (B, T)
    counts = StepCounts(len(lengths), float(mask.sum()))
    per_token = torch.zeros_like(mask, requires_grad=True)  # (B, T)
    loss_value = aggregate(per_token, mask, get_loss(loss).aggregation, counts, longest)
    [gradient] = torch.autograd.grad(loss_value, [per_token])
    return gradient[:, 0].tolist()


@measure
def kl_bias(runs: Runs, turned_round: bool = False) -> Figure:
    """The expected estimate of the KL less the KL itself, by enumeration of four tokens.

    The estimate is k3, r - 1 - log r with r = reference / policy; `turned_round`: with r = policy /
    reference.
    """
    import torch

    from grpo_ext.objective.kl import kl_per_token

    policy = torch.tensor(POLICY, dtype=torch.float64).log()
    reference = torch.tensor(REFERENCE, dtype=torch.float64).log()
    kl = (policy.exp() * (policy - reference)).sum().item()
    estimates = kl_per_token(policy, reference)
    if turned_round:
        estimates = kl_per_token(reference, policy)
    expected = (policy.exp() * estimates).sum().item()
    return exact(expected - kl, f"the KL is {kl:.4f}, the expected estimate {expected:.4f}")
