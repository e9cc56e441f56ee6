"""Groups of completions: which of them have signal, and tables of whole groups.

A group is the G completions of one prompt. It is judged by one outcome reward, not by the weighted sum: a format reward that
varies would make a group look alive whose completions are all wrong (DAPO, arXiv 2503.14476, section 3.2, filters by accuracy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_ext.objective.advantage import no_signal
from grpo_ext.step.records import Scored, join


@dataclass(frozen=True)
class GroupRule:
    """When a group has signal.

    Args:
        num_generations: G, completions a prompt.
        pass_threshold: the outcome reward from which a completion counts as right.
        pass_rate_bounds: lowest and highest share of right completions, both allowed; `None`: the outcome reward varies.
    """

    num_generations: int
    pass_threshold: float = 1.0
    pass_rate_bounds: tuple[float, float] | None = None

    def judge(self, outcomes: Tensor) -> GroupStats:
        """Judge whole groups.

        Args:
            outcomes: (N G,), the outcome reward; NaN where a completion was not scored.
        """
        grouped = outcomes.view(-1, self.num_generations)  # (N, G)
        scored = (~grouped.isnan()).sum(1)
        right = (grouped >= self.pass_threshold).sum(1)
        rates = right / scored.clamp(min=1)  # (N,)
        varies = ~no_signal(outcomes, self.num_generations).view(-1, self.num_generations)[:, 0]
        kept = varies
        if self.pass_rate_bounds is not None:
            low, high = self.pass_rate_bounds
            kept = (rates >= low) & (rates <= high) & (scored > 0)
        return GroupStats(kept, right, scored, ~varies & (right > 0), ~varies & (right == 0) & (scored > 0))


@dataclass(frozen=True)
class GroupStats:
    """What is known of N groups.

    Args:
        kept: (N,), bool, has signal by the rule.
        right: (N,), completions that are right.
        scored: (N,), completions that the outcome reward scored.
        all_right: (N,), bool, all rewards equal, and right.
        all_wrong: (N,), bool, all rewards equal, and not right; not where no completion was scored.
    """

    kept: Tensor
    right: Tensor
    scored: Tensor
    all_right: Tensor
    all_wrong: Tensor


@dataclass(frozen=True)
class Groups:
    """Whole groups of all ranks.

    Args:
        table: one row a completion, the rows of a group beside each other.
        rewards: (rows, R).
        steps: for each group the optimizer step whose policy sampled it.
    """

    table: Scored
    rewards: Tensor
    steps: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, indices: Sequence[int]) -> Groups | None:
        """Some groups, in the order given; `None` for none of them."""
        if not len(indices):
            return None
        size = len(self.rewards) // len(self)
        rows = rows_of(torch.as_tensor(indices), size).to(self.rewards.device)
        return Groups(self.table.take(rows), self.rewards[rows], tuple(self.steps[i] for i in indices))


def count(groups: Groups | None) -> int:
    """How many groups."""
    return 0 if groups is None else len(groups)


def join_groups(parts: Sequence[Groups | None]) -> Groups | None:
    """All groups one after the other; `None` where there are none."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    rewards = torch.cat([part.rewards for part in found])
    return Groups(join([part.table for part in found]), rewards, sum((part.steps for part in found), ()))


def silenced(groups: Groups) -> Groups:
    """Groups that fill up a batch: no token of theirs is trained on, and no count sees them, nor an advantage."""
    everything = torch.ones(len(groups.table), dtype=torch.bool, device=groups.rewards.device)
    nothing = torch.full_like(groups.rewards, torch.nan)
    return replace(groups, table=groups.table.without(everything), rewards=nothing)


def rows_of(groups: Tensor, num_generations: int) -> Tensor:
    """(N G,), the rows of groups that lie one after the other."""
    return (groups.unsqueeze(1) * num_generations + torch.arange(num_generations, device=groups.device)).flatten()


def groups_to_draw(missing: int, kept: int, drawn: int, most: int, unit: int) -> int:
    """How many groups to generate so that about `missing` of them have signal.

    Args:
        missing: groups wanted.
        kept, drawn: groups with signal, and all, of those generated so far; `drawn` 0 draws just what is missing.
        most: never more than this, a multiple of `unit`.
        unit: groups come in multiples of this, so that all ranks generate equally many completions.
    """
    wanted = missing if drawn == 0 else -(-missing * drawn // max(kept, 1))
    return min(most, -(-wanted // unit) * unit)
