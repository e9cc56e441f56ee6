"""Which groups teach something, and how groups of several generations make one batch.

A group is the G completions of one prompt. It is judged by one outcome reward, not by the weighted sum: a format reward that
varies would make a group look alive whose completions are all wrong (DAPO, arXiv 2503.14476, section 3.2, filters by accuracy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from grpo_ext.batching.rows import Batch, join_rows, take_rows
from grpo_ext.objective.advantage import no_signal

MASKS = ("completion_mask", "tool_mask")
FILTERS = ("off", "drop", "refill")


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

    def judge(self, outcomes: torch.Tensor) -> GroupStats:
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
        return GroupStats(kept, right, scored, ~varies & (right > 0), ~varies & (right == 0))


@dataclass(frozen=True)
class GroupStats:
    """What is known of N groups.

    Args:
        kept: (N,), bool, has signal by the rule.
        right: (N,), completions that are right.
        scored: (N,), completions that the outcome reward scored.
        all_right: (N,), bool, all rewards equal, and right.
        all_wrong: (N,), bool, all rewards equal, and not right.
    """

    kept: torch.Tensor
    right: torch.Tensor
    scored: torch.Tensor
    all_right: torch.Tensor
    all_wrong: torch.Tensor


@dataclass(frozen=True)
class Groups:
    """Whole groups, with what the trainer made of them.

    Args:
        table: one row a completion, the rows of a group beside each other.
        rewards: (rows,), the weighted sum; NaN where no reward scored a completion.
        steps: for each group the optimizer step whose policy sampled it.
    """

    table: Batch
    rewards: torch.Tensor
    steps: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, indices: Sequence[int]) -> Groups | None:
        """Some groups, in the order given; `None` for none of them."""
        if not len(indices):
            return None
        size = len(self.rewards) // len(self)
        rows = rows_of(torch.as_tensor(indices), size).to(self.rewards.device)
        return Groups(take_rows(self.table, rows), self.rewards[rows], tuple(self.steps[i] for i in indices))


def join_groups(parts: Sequence[Groups | None]) -> Groups | None:
    """All groups one after the other; `None` where there are none."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    rewards = torch.cat([part.rewards for part in found])
    return Groups(join_rows([part.table for part in found]), rewards, sum((part.steps for part in found), ()))


def silenced(groups: Groups) -> Groups:
    """Groups that fill up a batch: no token of theirs is trained on, and no count sees them."""
    return replace(groups, table=silence(groups.table, torch.ones_like(groups.rewards, dtype=torch.bool)))


def silence(table: Batch, dead: torch.Tensor) -> Batch:
    """Take rows out of the loss and of all that it is divided by.

    Args:
        table: one row a completion.
        dead: (B,), bool, the rows to take out.
    """
    live = ~dead
    changed = {name: table[name] * live.unsqueeze(1).to(table[name].dtype) for name in MASKS if name in table}
    for name in ("counted", "signal"):
        if name in table:
            changed[name] = table[name] * live.to(table[name].dtype)
    advantages = table["advantages"]
    changed["advantages"] = advantages.masked_fill(dead if advantages.dim() == 1 else dead.unsqueeze(1), 0.0)
    return {**table, **changed}


def rows_of(groups: torch.Tensor, num_generations: int) -> torch.Tensor:
    """(N G,), the rows of groups that lie one after the other."""
    return (groups.unsqueeze(1) * num_generations + torch.arange(num_generations, device=groups.device)).flatten()


def outcome_index(names: Sequence[str], weights: Sequence[float], metric: str | None) -> int:
    """Which reward judges the groups.

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
