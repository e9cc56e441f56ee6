"""What a generation is worth: which completions were cut off, what their rewards come to, how they compare in their group.

One meaning each of "truncated", "weighted" and "outcome", for the loss, the metrics, the samples and the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ext.objective.advantage import group_advantages, no_signal, normalized_then_summed, turn_advantages
from grpo_ext.step.records import Scored, padded


@dataclass(frozen=True)
class EndRule:
    """How a completion shows that it has ended.

    Args:
        tokens: one of these ends it.
        limit: tokens that it may have; only read where a stop string may end it, too.
        context: prompt and completion together have at most so many tokens; `None`: no such bound.
        stop_strings: whether text may end it, after which there is no end token.
    """

    tokens: frozenset[int]
    limit: int
    context: int | None = None
    stop_strings: bool = False

    def truncated(self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]]) -> list[bool]:
        """Which completions were cut off; an empty one was not."""
        return [
            len(ids) > 0 and ids[-1] not in self.tokens and not self._stopped(len(prompt), len(ids))
            for prompt, ids in zip(prompt_ids, completion_ids, strict=True)
        ]

    def _stopped(self, prompt: int, completion: int) -> bool:
        return self.stop_strings and completion < self.room(prompt)

    def room(self, prompt: int) -> int:
        """Tokens that a completion may have after a prompt of so many."""
        return self.limit if self.context is None else min(self.limit, self.context - prompt)


@dataclass(frozen=True)
class AdvantageRule:
    """How rewards become advantages; the fields are those of the training arguments.

    Args:
        num_generations: completions a prompt.
        weights: (R,), of the rewards.
        scale_rewards: "group", "batch" or "none".
        std_estimator: "sample" or "population".
        aggregation: "sum_then_normalize", or "normalize_then_sum", each reward by itself first.
    """

    num_generations: int
    weights: Tensor
    scale_rewards: str = "group"
    std_estimator: str = "sample"
    aggregation: str = "sum_then_normalize"

    def weighted(self, rewards: Tensor) -> Tensor:
        """(B,), the sum of a completion's rewards (B, R), each times its weight; NaN where no reward scored it."""
        total = (rewards * self.weights.to(rewards.device)).nansum(dim=1)
        return total.masked_fill(rewards.isnan().all(dim=1), torch.nan)

    def signal(self, rewards: Tensor) -> Tensor:
        """(B,), bool, whether the rewards (B, R) of a completion's group differ."""
        return ~no_signal(self.weighted(rewards), self.num_generations)

    def advantages(self, rewards: Tensor) -> Tensor:
        """(B,), from the rewards (B, R) of whole groups."""
        if self.aggregation == "normalize_then_sum":
            return normalized_then_summed(rewards, self.weights.to(rewards.device), self.num_generations)
        return group_advantages(self.weighted(rewards), self.num_generations, self.scale_rewards, self.std_estimator)

    def turn_advantages(self, rewards: Tensor, gains: Sequence[Sequence[float]]) -> Tensor:
        """(B, K), from the rewards (B, R) of whole groups and what each turn of each completion earned of them."""
        table = padded([torch.tensor(row) for row in gains]).to(rewards)
        turns = torch.tensor([len(row) for row in gains], device=rewards.device)
        how = self.num_generations, self.scale_rewards, self.std_estimator
        return turn_advantages(self.weighted(rewards), table, turns, *how)


def by_token(table: Scored, of_turns: Tensor) -> Tensor:
    """(B, T), for each token of the model the advantage of its turn.

    Args:
        table: of the completions, with a `tool_mask`.
        of_turns: (B, K), the advantage of each turn.
    """
    assert table.tool_mask is not None
    wrote = table.tool_mask.bool()  # (B, T)
    begins = wrote & ~torch.nn.functional.pad(wrote, (1, -1))
    turn = (begins.cumsum(1) - 1).clamp(0, of_turns.size(1) - 1)
    return of_turns.gather(1, turn) * table.completion_mask


def fill_unscored(rewards_per_func: Tensor, num_generations: int) -> Tensor:
    """Give a row that one reward did not score (NaN) the mean of its group on that reward.

    TRL sums what is not NaN, which counts a missing reward as 0 and so punishes the row beside its group. With the group's
    mean the row is judged on the rewards that answered. Where none of the group was scored the reward says nothing: 0 for
    all of them. A row that no reward scored stays NaN, and has the advantage 0.

    Args:
        rewards_per_func: (B, R), B whole groups of `num_generations` rows.
        num_generations: completions a prompt.

    Returns:
        (B, R); the same tensor where nothing is missing.
    """
    missing = rewards_per_func.isnan()  # (B, R)
    if not missing.any():
        return rewards_per_func
    grouped = rewards_per_func.view(-1, num_generations, rewards_per_func.size(1))  # (B / G, G, R)
    means = grouped.nanmean(dim=1, keepdim=True).nan_to_num(nan=0.0).expand_as(grouped).reshape_as(rewards_per_func)
    filled = torch.where(missing, means, rewards_per_func)
    return torch.where(missing.all(dim=1, keepdim=True), rewards_per_func, filled)


def outcome_index(names: Sequence[str], weights: Sequence[float], metric: str | None) -> int:
    """Which reward is the outcome that groups are judged by.

    Args:
        names: of the rewards.
        weights: of the rewards.
        metric: the name of one of them; `None`: the one of the largest weight, of several the first.

    Raises:
        ValueError: if there is no reward of that name.
    """
    if metric is None:
        return max(range(len(names)), key=lambda i: (weights[i], -i))
    if metric not in names:
        raise ValueError(f"group_filter_metric: no reward {metric!r}. The rewards are {', '.join(names)}.")
    return list(names).index(metric)
