"""Turn prompts into a step's scored completions: generate, drop, refill and carry groups.

prompts ──► Generations ──► keep, drop or refill groups ──► old and reference log-probs ──► Scored
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from grpo_ext.curriculum.sampler import PromptSupply
from grpo_ext.objective.advantage import get_advantages
from grpo_ext.rewards.scores import UserCodeFailure
from grpo_ext.seams import trl as seam
from grpo_ext.seams.port import Row
from grpo_ext.step.groups import GroupRule, Groups, GroupShape, GroupStats
from grpo_ext.step.metrics import GroupLog, generation_figures
from grpo_ext.step.records import Ranks, Scored, join
from grpo_ext.step.refill import Filled, RefillRule, first_round, refill
from grpo_ext.trainer.generations import Generations
from grpo_ext.trainer.judging import Judged
from grpo_ext.trainer.port import Trainer
from grpo_ext.trainer.prompt_order import PromptOrder
from grpo_ext.trainer.samples import Samples
from grpo_ext.vllm import EngineFailure

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Rollout:
    """Generates, scores and logs a batch of completions, for training and for TRL's evaluation.

    An instance is called with this rank's rows. In training, it also drops or refills groups if
    `group_filter` is set, and requests the next generation if `overlap` is on.
    """

    trainer: Trainer
    generations: Generations
    order: PromptOrder
    samples: Samples
    ranks: Ranks
    # `Feed.following`: this rank's rows of a later generation
    following: Callable[..., list[Row] | None]
    generated: Callable[[Scored], None]  # called with this rank's completions to train on
    judged: Callable[[Tensor, Tensor, Tensor, slice, GroupShape], None]  # `Learning.judged`
    evaluated: Callable[[Judged], None]  # called with each batch of TRL's evaluation
    carried: Groups | None = None  # groups for the next generation; the same on all ranks
    log: GroupLog = field(default_factory=GroupLog)
    _said_missing: bool = False

    def __post_init__(self) -> None:
        args = self.trainer.args
        self.group_filter: str = args.group_filter  # "off", "drop" or "refill"
        self.groups = GroupRule(self.trainer.num_generations, args.pass_threshold)
        self.refill = RefillRule.of(args, self.ranks.count)

    def __call__(self, rows: list[Row]) -> Scored:
        """Generate, score and log completions for this rank's rows, and return them.

        In `rows`, the copies of a prompt are adjacent. In training with `group_filter: refill`, the
        completions may belong to prompts that are not in `rows`.
        """
        if not self.trainer.model.training:
            judged = self.generations(rows)
            self.evaluated(judged)
            self._record([judged])
            return judged.table
        self.log.start()
        if self.group_filter == "refill":
            table = self._refilled(rows)
        else:
            judged = self.generations(rows, on_sampled=self._ask_ahead)
            self._record([judged])
            table = self._filtered(judged)
        self.generated(table)
        seam.log_figures(self.trainer, self.log.figures())
        return table

    def watch_trl(self, rows: list[Row], table: dict[str, Any]) -> dict[str, Any]:
        """Record completions that TRL has generated and scored, and return `table` unchanged.

        This method is used with `loss_normalization: micro_batch` (`preset: trl`), where TRL
        computes the loss. The completions are passed to `samples`. In training, they are also
        passed to `generated`, and the metrics of their groups are logged; in an evaluation, they
        are passed to `evaluated` instead.

        Args:
            rows: the rows of this rank, one per completion.
            table: the mapping that TRL returned for them.
        """
        judged = self.generations.made_by_trl(rows, table)
        advantages = seam.last_completions(self.trainer, len(judged.rewards))[3]
        # TRL counts a missing reward as 0
        judged = replace(judged, rewards=judged.raw_rewards, advantages=advantages)
        self.samples.hand_out(judged)
        if self.trainer.model.training:
            self.generated(judged.table)
            self.log.start()
            self._judge_groups(self._seen_prompts(judged), judged)
            seam.log_figures(self.trainer, self.log.figures())
        else:
            self.evaluated(judged)
        return table

    def _ask_ahead(self) -> None:
        """Request the next generation if `overlap` is on, unless the run or epoch ends first."""
        state = self.trainer.state
        due = state.global_step + self.refill.between
        if self.trainer.args.overlap == "off" or due >= state.max_steps:
            return
        rows = self.following()
        if rows is None:
            return
        if self.group_filter == "refill":
            supply = self.order.further
            assert supply is not None
            num_groups = len(rows) * self.ranks.count // self.trainer.num_generations
            supply.put(self._whole_prompts(rows))
            num_prompts = first_round(num_groups, self.carried, due, self.refill)
            rows = self._copies(supply.peek(num_prompts))
        else:
            rows = []
            for later in self.generations.ahead.sampler.generations_to_request():
                rows += self.following(later) or []
        self.generations.ask(rows, due)

    # ---- groups

    def _filtered(self, judged: Judged) -> Scored:
        """Judge the groups, and return this rank's completions.

        With `group_filter: drop`, groups without signal are masked, and advantages that depend on
        other groups are recomputed without the masked groups.
        """
        stats = self._judge_groups(self._seen_prompts(judged), judged)
        if self.group_filter != "drop":
            return judged.table
        dead = judged.shape.repeat(~stats.kept)  # (B of all ranks,)
        table = judged.table.without(dead[self.ranks.own_slice(len(dead))])
        used = judged.rewards.masked_fill(dead.unsqueeze(1), torch.nan)
        return self._scaled(table, used, judged.shape)

    def _refilled(self, rows: list[Row]) -> Scored:
        """Return this rank's part of a full step of groups, refilled as needed.

        `rows` are this rank's rows, one per completion.

        If user code or the engine fails, the supply of prompts, the carried groups and the step
        that the requested generation is for are restored before the error is raised.
        """
        ahead = self.generations.ahead
        supply = self.order.further
        assert supply is not None
        due = ahead.due
        prompts = supply.state_dict()
        carried = self.carried
        try:
            return self._filled(rows, supply)
        except (UserCodeFailure, EngineFailure):  # a restart repeats the step
            supply.load_state_dict(prompts)
            ahead.due = due
            self.carried = carried
            raise

    def _filled(self, rows: list[Row], supply: PromptSupply) -> Scored:
        size = self.trainer.num_generations
        step = self.trainer.state.global_step
        rule = self.refill
        old_and_reference = self.generations.old_and_reference
        rounds: list[Judged] = []
        # If the sampler does not return the tokens that it kept, a forward pass finds them now,
        # before the policy changes.
        finds_kept = rule.max_staleness > 0 and old_and_reference.finds_kept

        def complete(prompts: list[Row]) -> tuple[Groups, Tensor]:
            judged = self.generations(self._copies(prompts), score_policies=False)
            if self.generations.by_trl and self.ranks.any(bool(judged.table.model_inputs)):
                raise ValueError(
                    "`group_filter: refill` does not work with prompts that have images. Set "
                    "`group_filter: drop`, which leaves groups without signal out of the loss but "
                    "does not replace them."
                )
            rounds.append(judged)
            has_signal = self._judge_groups(prompts, judged).kept  # (groups,)
            table = judged.table
            if finds_kept:
                table = old_and_reference.with_kept(table)
            if self.ranks.count > 1:
                table = join(self.ranks.gather_objects([table.on("cpu")])).on(self.ranks.device)
            group_steps = tuple(map(int, table.policy_step[::size, 0]))
            return Groups(table, judged.rewards, group_steps), has_signal

        if self.generations.ahead.due != step:  # otherwise `_ask_ahead` has added the prompts
            supply.put(self._whole_prompts(rows))
        num_groups = len(rows) * self.ranks.count // size
        filled = refill(num_groups, supply.take, complete, self.carried, step, rule)
        if rounds:
            self._record(rounds)
        self.carried = filled.carried
        if self.carried is not None and rule.max_staleness > 0:
            table = old_and_reference.scored_everywhere(self.carried.table)
            self.carried = replace(self.carried, table=table)
        self.log.filled = filled
        self._ask_ahead()
        self._say_what_is_missing(filled, num_groups)
        own_rows = self.ranks.own_slice(len(filled.groups.table))
        table = filled.groups.table.take(torch.arange(own_rows.start, own_rows.stop))
        shape = GroupShape.equal(len(filled.groups.table), size)
        table = self._scaled(table, filled.groups.rewards, shape)
        return old_and_reference(table)

    def _scaled(self, table: Scored, rewards: Tensor, shape: GroupShape) -> Scored:
        """Return this rank's table, with advantages recomputed if they depend on other groups.

        If `scale_rewards` is an estimator whose advantages also depend on other groups, such as
        "batch", they are recomputed from the groups that are used. With any other estimator, the
        table is returned unchanged.

        Args:
            table: this rank's completions.
            rewards: (B of all ranks, R), the rewards; NaN in groups that are not used.
            shape: the groups of all ranks.
        """
        rule = replace(self.generations.rule, num_generations=shape.largest)
        if get_advantages(rule.scale_rewards).within_group:
            return table
        advantages = shape.gather(rule.advantages(shape.spread(rewards)))
        own_rows = self.ranks.own_slice(len(rewards))
        return replace(table, advantages=advantages[own_rows].to(table.advantages))

    def _judge_groups(self, prompts: list[Row], judged: Judged) -> GroupStats:
        """Judge the groups of all ranks, and return their statistics.

        The groups are also reported to the log, the curriculum and the callback `self.judged`.

        Args:
            prompts: one row per group, for the curriculum; empty if the curriculum needs no pass
                rates.
            judged: the completions with their rewards.
        """
        shape = judged.shape
        groups = replace(self.groups, num_generations=shape.largest)
        stats = groups.judge(shape.spread(judged.outcomes), judged.ties)
        left_out = ~stats.kept & (self.group_filter != "off")  # (groups,)
        self.judged(
            judged.raw_rewards,
            judged.table.signal,
            shape.repeat(left_out),
            self.ranks.own_slice(len(judged.outcomes)),
            shape,
        )
        rule = replace(self.generations.rule, num_generations=shape.largest)
        tasks = [judged.tasks[first] for first in shape.starts] if judged.tasks else []
        self.log.generated(stats, rule.group_stds(shape.spread(judged.rewards)), tasks)
        self.order.observe(prompts, stats)
        return stats

    def _seen_prompts(self, judged: Judged) -> list[Row]:
        """Return one row per group of all ranks; all ranks must call this method.

        If the curriculum needs no pass rates, return an empty list.
        """
        if self.order.rates is None:
            return []
        slots = self._whole_prompts(judged.rows)
        return [slots[first // self.trainer.num_generations] for first in judged.shape.starts]

    def _whole_prompts(self, rows: list[Row]) -> list[Row]:
        """Gather one row for each slot of `num_generations` completions, from all ranks.

        `rows` are this rank's rows, one per completion. All ranks must call this method, with the
        same number of rows.
        """
        first = self.ranks.own_slice(len(rows) * self.ranks.count).start
        size = self.trainer.num_generations
        return self.ranks.gather_objects(
            [row for i, row in enumerate(rows) if (first + i) % size == 0]
        )

    def _copies(self, prompts: list[Row]) -> list[Row]:
        """Repeat each prompt `num_generations` times, and return this rank's part of the rows.

        `prompts` are the prompts of all ranks.
        """
        copies = [dict(row) for row in prompts for _ in range(self.trainer.num_generations)]
        return copies[self.ranks.own_slice(len(copies))]

    def _say_what_is_missing(self, filled: Filled, num_groups: int) -> None:
        if filled.missing and not self._said_missing and self.trainer.accelerator.is_main_process:
            self._said_missing = True
            logger.warning(
                f"Step {self.trainer.state.global_step + 1}: only {filled.used} of {num_groups} "
                "groups have signal, even after the further rounds that group_filter_max_rounds "
                f"allows ({self.refill.max_rounds}). The loss leaves out the other groups, and its "
                "normalization does not count them. To find more groups with signal, raise "
                "group_filter_max_rounds or num_generations. This warning is shown only once; "
                "groups/missing counts the missing groups of each step."
            )

    # ---- logs

    def _record(self, rounds: list[Judged]) -> None:
        """Pass the completions of one generation to `samples`, and log its metrics.

        All rounds of the generation are logged together. Completions that TRL generated are passed
        on, but not logged again.
        """
        for judged in rounds:
            self.samples.hand_out(judged)
        if self.generations.by_trl:
            return  # TRL has already logged these completions
        tokens = 0
        signals = []
        tasks: list[str] = []
        for judged in rounds:
            tokens += int(judged.table.prompt_mask.sum()) + sum(judged.lengths)
            signals.append(self.ranks.gather(judged.table.signal))
            tasks += judged.tasks
        total_tokens = self.ranks.total(torch.tensor(tokens, device=self.ranks.device))
        seam.count_tokens(self.trainer, int(total_tokens))
        raw_rewards = torch.cat([judged.raw_rewards for judged in rounds])
        rewards = torch.cat([judged.rewards for judged in rounds])
        groups = None
        if self.trainer.model.training:  # a batch of an evaluation has too few rows
            places = torch.arange(len(rewards), device=rewards.device)
            groups = places // self.trainer.num_generations
        figures = generation_figures(
            self.trainer.reward_func_names,
            rewards=raw_rewards,
            weighted=self.generations.rule.weighted(rewards),
            signal=torch.cat(signals),
            lengths=self._gathered([judged.lengths for judged in rounds]),
            truncated=self._gathered([judged.truncated for judged in rounds]),
            tasks=tasks,
            groups=groups,
        )
        seam.log_figures(self.trainer, figures)

    def _gathered(self, rounds: list[Any]) -> Tensor:
        """Concatenate the values of all rounds and ranks, in the same order as the rewards.

        `rounds` contains, for each round, one value per completion of this rank.
        """
        columns = [torch.tensor(column, device=self.ranks.device) for column in rounds]
        return torch.cat([self.ranks.gather(column) for column in columns])

    def state_dict(self) -> dict[str, Any]:
        """Return the carried groups, the prompt order and the generation requested ahead.

        Call `Ahead.wait` first. The groups and the prompt order are the same on all ranks.
        """
        ahead = self.generations.ahead.state_dict() if self.trainer.args.overlap != "off" else None
        return {"ahead": ahead, "carried": self.carried, "order": self.order.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`, after stopping any generation in progress."""
        self.generations.ahead.stop()
        self.carried = state["carried"]
        if self.carried is not None:
            self.carried = self.carried.on(self.ranks.device)
        self.order.load_state_dict(state["order"])
        if self.trainer.args.overlap != "off" and state["ahead"] is not None:
            self.generations.ahead.load_state_dict(state["ahead"])
