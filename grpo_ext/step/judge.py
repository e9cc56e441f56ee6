"""Judge a generation: truncation, weighted rewards, outcome rewards and advantages.

"Truncated", "weighted" and "outcome" are defined here once, for the loss, the metrics, the samples
and the report.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ext.objective.advantage import (
    SUM_THEN_NORMALIZE,
    equal_in_group,
    group_advantages,
    group_stds,
    joint_advantages,
    turn_advantages,
)
from grpo_ext.step.records import Scored, padded


@dataclass(frozen=True)
class EndRule:
    """Decides whether a completion has ended or was truncated."""

    tokens: frozenset[int]  #: each of these tokens ends a completion
    limit: int  #: the maximum number of tokens of a completion or episode
    #: the maximum number of tokens of prompt and completion together; `None` for no limit
    context: int | None = None
    #: whether a stop string ends these tokens; `None` if there are no stop strings
    ends_with_string: Callable[[Sequence[int]], bool] | None = None

    def truncated(
        self,
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
    ) -> list[bool]:
        """Return, for each completion, whether it is truncated.

        A completion is truncated if its last token is not an end token and no stop string ended it.
        With stop strings, a completion shorter than its `room` counts as ended by a stop string. An
        empty completion is not truncated.
        """
        truncated = []
        for prompt, completion in zip(prompt_ids, completion_ids, strict=True):
            truncated.append(self._is_truncated(len(prompt), completion))
        return truncated

    def _is_truncated(self, prompt_length: int, completion: Sequence[int]) -> bool:
        length = len(completion)
        if length == 0 or completion[-1] in self.tokens:
            return False
        if self.ends_with_string is None:
            return True
        has_room = length < self.room(prompt_length)
        return not has_room and not self.ends_with_string(completion)

    def room(self, prompt: int) -> int:
        """Return the maximum length of a completion after a prompt of `prompt` tokens."""
        if self.context is None:
            return self.limit
        return min(self.limit, self.context - prompt)


@dataclass(frozen=True)
class TieBreak:
    """The reward that breaks ties in groups whose completions are all correct."""

    index: int  #: the index of the reward, whose weight in the weighted sum is 0
    coef: float  #: `tie_break_coef`, which multiplies the advantages of the tie-break
    pass_threshold: float  #: a completion is correct if its outcome reward is at least this


@dataclass(frozen=True)
class AdvantageRule:
    """Computes advantages from rewards, using settings from the training arguments."""

    num_generations: int  #: completions per prompt
    weights: Tensor  #: (R,), the weights of the rewards
    scale_rewards: str = "group"  #: the name of an estimator in `objective.advantage`
    std_estimator: str = "sample"  #: "sample" or "population"
    #: "sum_then_normalize", or an estimator over all rewards that replaces `scale_rewards`
    aggregation: str = SUM_THEN_NORMALIZE
    tie_break: TieBreak | None = None  #: `None` leaves groups of equal rewards undecided

    def weighted(self, rewards: Tensor) -> Tensor:
        """Return the weighted sums (B,) of rewards (B, R).

        Each sum covers only the rewards that scored the completion; it is NaN if none did.
        """
        terms = rewards * self.weights.to(rewards)  # (B, R)
        unscored = rewards.isnan().all(dim=1)  # (B,)
        return terms.nansum(dim=1).masked_fill(unscored, torch.nan)

    def group_stds(self, rewards: Tensor) -> Tensor:
        """Return the std (N,) of the weighted sums within each group, from rewards (B, R).

        It is NaN for a group in which fewer than two completions were scored.
        """
        weighted = self.weighted(rewards)  # (B,)
        return group_stds(weighted, self.num_generations, self.std_estimator)

    def ties(self, rewards: Tensor, outcomes: Tensor) -> Tensor | None:
        """Return a bool mask (B,) of the completions in groups that the tie-break reward decides.

        It decides a group if the weighted sums are equal, every completion is correct, and the
        tie-break reward differs within the group. Without a tie-break reward, return `None`.

        Args:
            rewards: the rewards of whole groups, (B, R), after `fill_unscored`.
            outcomes: the outcome reward of each completion, (B,); NaN if it was not scored.
        """
        if self.tie_break is None:
            return None
        size = self.num_generations  # G
        weighted = self.weighted(rewards)  # (B,)
        equal = equal_in_group(weighted, size, self._magnitudes(rewards))  # (B,)
        right = outcomes >= self.tie_break.pass_threshold  # (B,)
        group_is_right = right.view(-1, size).all(dim=1)  # (B / G,)
        all_right = group_is_right.repeat_interleave(size)  # (B,)
        tie_break_rewards = rewards[:, self.tie_break.index]  # (B,)
        differs = ~equal_in_group(tie_break_rewards, size)  # (B,)
        return equal & all_right & differs

    def advantages(self, rewards: Tensor, ties: Tensor | None = None) -> Tensor:
        """Return the advantages (B,) of the completions of whole groups.

        Args:
            rewards: (B, R), the rewards of whole groups.
            ties: a bool mask (B,) of the completions in groups that the tie-break reward decides;
                `None` if there are none. Advantages of these completions are computed in the same
                way, but from the tie-break reward, and multiplied by its coefficient. An
                `aggregation` other than "sum_then_normalize" ignores `ties`.

        Raises:
            ValueError: if the estimator is not registered, or returns a tensor of the wrong shape.
        """
        if self.aggregation != SUM_THEN_NORMALIZE:
            weights = self.weights.to(rewards)
            return joint_advantages(rewards, weights, self.num_generations, self.aggregation)
        of_sum = group_advantages(
            self.weighted(rewards),
            self.num_generations,
            self.scale_rewards,
            self.std_estimator,
            self._magnitudes(rewards),
        )
        if ties is None or self.tie_break is None:
            return of_sum
        of_tie_break = group_advantages(
            rewards[:, self.tie_break.index],
            self.num_generations,
            self.scale_rewards,
            self.std_estimator,
        )
        return torch.where(ties, self.tie_break.coef * of_tie_break, of_sum)

    def _magnitudes(self, rewards: Tensor) -> Tensor:
        """Return the sum (B,) of the absolute values of each completion's weighted rewards."""
        terms = rewards * self.weights.to(rewards)  # (B, R)
        return terms.abs().nansum(dim=1)

    def turn_advantages(self, rewards: Tensor, gains: Sequence[Sequence[float]]) -> Tensor:
        """Return the advantages of turns, (B, K), where K is the largest number of turns.

        Args:
            rewards: (B, R), the rewards of episodes as a whole. The episodes form whole groups.
            gains: for each episode, the part of its reward that each turn earned.

        Raises:
            ValueError: if the estimator is not registered, or returns a tensor of the wrong shape.
        """
        num_turns = [len(row) for row in gains]
        return turn_advantages(
            rewards=self.weighted(rewards),
            gains=padded(gains, dtype=rewards.dtype).to(rewards.device),
            turns=torch.tensor(num_turns, device=rewards.device),
            num_generations=self.num_generations,
            scale_rewards=self.scale_rewards,
            std_estimator=self.std_estimator,
        )


def by_token(table: Scored, of_turns: Tensor) -> Tensor:
    """Return the advantage of each token (B, T), from the advantages of turns (B, K).

    A token that the environment wrote gets the advantage of the turn before it. Padding, and
    completions that are left out, get 0. `table` must have a `tool_mask`.
    """
    assert table.tool_mask is not None
    by_policy = table.tool_mask.bool()  # (B, T), whether the policy wrote the token
    previous_by_policy = torch.nn.functional.pad(by_policy, (1, -1))  # (B, T)
    begins_turn = by_policy & ~previous_by_policy  # (B, T)
    last_turn = of_turns.size(1) - 1
    turn = begins_turn.cumsum(1) - 1  # (B, T)
    advantages = of_turns.gather(1, turn.clamp(0, last_turn))  # (B, T)
    return advantages * table.completion_mask


def fill_unscored(rewards_per_func: Tensor, num_generations: int) -> Tensor:
    """Replace missing rewards (NaN) with the group's mean of the same reward.

    TRL sums the rewards that are not NaN, so a missing reward counts as 0, which shifts the
    completion relative to its group. With the group's mean, only the rewards that scored a
    completion move it relative to its group. A reward that scored no completion of the group counts
    as 0 for all of them. A completion that no reward scored stays NaN and gets advantage 0.

    Args:
        rewards_per_func: the rewards (B, R) of whole groups of `num_generations` completions.
        num_generations: the number of completions per prompt.

    Returns:
        The filled rewards (B, R). If none was missing, this is the tensor that was passed.
    """
    missing = rewards_per_func.isnan()  # (B, R)
    if not missing.any():
        return rewards_per_func
    num_rewards = rewards_per_func.size(1)
    grouped = rewards_per_func.view(-1, num_generations, num_rewards)  # (B / G, G, R)
    means = grouped.nanmean(dim=1, keepdim=True)  # (B / G, 1, R)
    means = means.nan_to_num(nan=0.0)
    row_means = means.expand_as(grouped).reshape(missing.shape)  # (B, R)
    scored_by_any = ~missing.all(dim=1, keepdim=True)  # (B, 1)
    return torch.where(missing & scored_by_any, row_means, rewards_per_func)


def outcome_index(names: Sequence[str], weights: Sequence[float], metric: str | None) -> int:
    """Return the index of the outcome reward, which judges the groups.

    It is the reward called `metric` or, if `metric` is `None`, the first one with the largest
    weight.

    Args:
        names: the names of the rewards.
        weights: the weights of the rewards.
        metric: the name of the outcome reward, from `group_filter_metric`, or `None`.

    Raises:
        ValueError: if no reward is called `metric`.
    """
    if metric is None:
        return list(weights).index(max(weights))
    if metric not in names:
        raise ValueError(
            f"group_filter_metric: there is no reward {metric!r}. The rewards are "
            f"{', '.join(names)}."
        )
    return list(names).index(metric)


def outcome_order(names: Sequence[str], weights: Sequence[float], metric: str | None) -> list[int]:
    """Return the indices of the rewards that may judge a group, in order of priority.

    The outcome reward (see `outcome_index`) comes first, then all other rewards with a non-zero
    weight, in descending order of weight. A group is judged by the first of them that scored any of
    its completions (see `group_outcomes`). If each reward scores only the rows of one task,
    `metric` therefore judges the groups of the task that it scores. The groups of any other task
    are judged by that task's reward with the largest weight.

    Args:
        names: the names of the rewards.
        weights: the weights of the rewards.
        metric: the name of a reward, from `group_filter_metric`, or `None`.

    Raises:
        ValueError: if no reward is called `metric`.
    """
    first = outcome_index(names, weights, metric)
    order = [first]
    by_weight = sorted(range(len(names)), key=lambda index: -weights[index])
    for index in by_weight:
        if index != first and weights[index] != 0:
            order.append(index)
    return order


def group_outcomes(
    rewards: Tensor,
    order: Sequence[int],
    num_generations: int,
    failed: Tensor | None = None,
) -> Tensor:
    """Return the outcome reward of each completion, (B,).

    All completions of a group are judged by the same reward: the first one in `order` that scored
    any of them. If a reward earlier in `order` failed on some of them and scored none, the group
    stays unjudged instead. The outcome of a completion is NaN if its group is unjudged, or if the
    reward that judges the group did not score the completion.

    Args:
        rewards: the rewards (B, R) of whole groups; NaN if a reward did not score a completion.
        order: the indices of rewards, from `outcome_order`.
        num_generations: the number of completions per prompt.
        failed: a bool mask (B, R), true where a reward failed instead of declining to score;
            `None` if none failed.
    """
    grouped = rewards.view(-1, num_generations, rewards.size(1))  # (B / G, G, R)
    judges = ~grouped.isnan()  # (B / G, G, R)
    if failed is not None:
        judges = judges | failed.view_as(grouped)
    outcomes = torch.full_like(grouped[:, :, 0], torch.nan)  # (B / G, G)
    judged = torch.zeros_like(judges[:, :1, 0])  # (B / G, 1)
    for index in order:
        judges_group = judges[:, :, index].any(dim=1, keepdim=True)  # (B / G, 1)
        is_first = judges_group & ~judged  # (B / G, 1)
        outcomes = torch.where(is_first, grouped[:, :, index], outcomes)
        judged = judged | judges_group
    return outcomes.flatten()
