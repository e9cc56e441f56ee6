"""Measures that evaluate formulas, without runs: token weights and the bias of a KL estimator."""

from collections.abc import Sequence

from grpo_ext.reproduce.measures.base import Figure, Runs, exact, measure

POLICY = (0.5, 0.3, 0.15, 0.05)
REFERENCE = (0.35, 0.3, 0.2, 0.15)


@measure
def token_weight(
    runs: Runs,
    loss: str,
    length: int,
    against: int,
) -> Figure:
    """Return a token's weight in the loss, relative to that of a token in another completion.

    Both completions are in the same batch.

    Args:
        runs: not used.
        loss: the name of a loss.
        length: the number of tokens in the completion of the first token.
        against: the number of tokens in the other completion.
    """
    weight, other_weight = token_weights(loss, (length, against))
    return exact(weight / other_weight)


def token_weights(loss: str, lengths: Sequence[int]) -> list[float]:
    """Return the weight of a token in each completion of a batch.

    The weight is the derivative of the aggregated loss with respect to the token's loss. `lengths`
    gives the number of tokens in each completion.
    """
    import torch

    from grpo_ext.objective.policy import StepCounts, aggregate, get_loss

    longest = max(lengths)
    ends = torch.tensor(lengths).unsqueeze(1)  # (B, 1)
    mask = (torch.arange(longest) < ends).float()  # (B, T)
    counts = StepCounts(len(lengths), float(mask.sum()))
    per_token = torch.zeros_like(mask, requires_grad=True)  # (B, T)
    loss_value = aggregate(per_token, mask, get_loss(loss).aggregation, counts, longest)
    [gradient] = torch.autograd.grad(loss_value, [per_token])
    return gradient[:, 0].tolist()


@measure
def kl_bias(runs: Runs, turned_round: bool = False) -> Figure:
    """Return the bias of the k3 estimator: its expectation minus the KL divergence.

    Both are computed exactly, for a vocabulary of four tokens. The estimator is r - 1 - log r, with
    r = reference / policy, or with r = policy / reference if `turned_round`. `runs` is not used.
    """
    import torch

    from grpo_ext.objective.kl import kl_per_token

    policy = torch.tensor(POLICY, dtype=torch.float64).log()
    reference = torch.tensor(REFERENCE, dtype=torch.float64).log()
    log_ratios = policy - reference
    kl = (policy.exp() * log_ratios).sum().item()
    estimates = kl_per_token(policy, reference)
    if turned_round:
        estimates = kl_per_token(reference, policy)
    expected = (policy.exp() * estimates).sum().item()
    return exact(expected - kl, f"the KL is {kl:.4f}, the expected estimate {expected:.4f}")
