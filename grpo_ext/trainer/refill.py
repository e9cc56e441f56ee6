"""Groups without signal are left out of a step, and others generated in their place.

    data loader ── prompts ──► generate ──► judge by the outcome reward ──► N groups with signal ──► step
                                  ▲                  │ fewer than N: further prompts
                                  └──────────────────┘ more than N: carried to the next generation

TRL's generation is called again for what is missing; the batches that it returns are joined. Rewards are known on all ranks, so
that all decide the same without asking each other.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from accelerate.utils import gather_object

from grpo_ext.batching.rows import is_table, join_rows, moved, take_rows
from grpo_ext.curriculum.group_log import GroupLog, merge_metrics
from grpo_ext.curriculum.groups import (
    FILTERS,
    GroupRule,
    Groups,
    GroupStats,
    groups_to_draw,
    join_groups,
    outcome_index,
    silence,
    silenced,
)
from grpo_ext.curriculum.prompt_supply import PromptSupply, Row
from grpo_ext.objective.advantage import group_advantages
from grpo_ext.trainer.logprobs import loss_mask
from grpo_ext.trainer.rows import overridden
from grpo_ext.trainer.scored_later import ScoredLater, unscored

logger = logging.getLogger(__name__)


class FilteredGroups(ScoredLater):
    """Mixin before `GRPOTrainer`, outside of all that changes what a generation returns.

    Reads the options `group_filter`, `group_filter_metric`, `group_filter_pass_rates`, `group_filter_max_rounds`,
    `max_staleness` and `pass_threshold`.
    """

    _needs_prompts = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        given = self.args
        self.group_filter: str = getattr(given, "group_filter", "off")
        self.max_rounds: int = getattr(given, "group_filter_max_rounds", 4)
        self.max_staleness: int = getattr(given, "max_staleness", 1)
        bounds = getattr(given, "group_filter_pass_rates", None)
        self.group_rule = GroupRule(
            self.num_generations, getattr(given, "pass_threshold", 1.0), tuple(bounds) if bounds else None
        )
        metric = getattr(given, "group_filter_metric", None)
        self.outcome_reward = outcome_index(self.reward_func_names, self.reward_weights.tolist(), metric)
        self.group_log = GroupLog(self.group_filter)
        self._said_missing = False
        self.carried: Groups | None = None  # with signal, for the next generation; the same on all ranks
        self.further_prompts: PromptSupply | None = None
        check_filter(self)
        if self.group_filter == "refill":
            self.further_prompts = PromptSupply(self.train_dataset, self.args.seed, self.shuffle_dataset)
            passes = self.args.steps_per_generation * self.num_iterations
            between = -(-passes // self.args.gradient_accumulation_steps)  # optimizer steps, rounded up
            self._may_carry = self.max_staleness >= between
            ranks = self.accelerator.num_processes
            self._unit = ranks // math.gcd(self.num_generations, ranks)

    def _generate_and_score_completions(self, inputs):
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        self.group_log.start()
        if self.group_filter == "refill":
            output = self._refilled(inputs)
        else:
            prompts = self._whole_prompts(inputs) if self._needs_prompts else []
            output = super()._generate_and_score_completions(inputs)
            stats = self._judge()
            self._observe(prompts, stats)
            if self.group_filter == "drop":
                output = self._dropped(output, stats)
        for name, value in self.group_log.figures().items():
            self._metrics["train"][name].append(value)
        if (advice := self.group_log.advice()) and self.accelerator.is_main_process:
            logger.warning(advice)
        return output

    def group_state(self) -> dict[str, Any]:
        """What a run that goes on must know of its groups; the same on all ranks."""
        prompts = self.further_prompts.state_dict() if self.further_prompts else None
        return {"carried": self.carried, "further_prompts": prompts}

    def load_group_state(self, state: dict[str, Any]) -> None:
        """Go on from what `group_state` gave."""
        self.carried = state["carried"]
        if self.further_prompts is not None:
            self.further_prompts.load_state_dict(state["further_prompts"])

    def _judge(self) -> GroupStats:
        """Of all groups of the last generation."""
        return self.group_rule.judge(self._rewards[:, self.outcome_reward])

    def _observe(self, prompts: list[Row], stats: GroupStats) -> None:
        """Groups were generated: their prompts, where `_needs_prompts` says so, and what they are worth; on all ranks."""
        self.group_log.generated(stats)

    def _weighted(self) -> torch.Tensor:
        """(B of all ranks,), the rewards of the last generation, weighted and summed."""
        rewards = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(dim=1)
        return rewards.masked_fill(self._rewards.isnan().all(dim=1), torch.nan)

    def _mine(self, rows: int) -> slice:
        """This rank's of so many rows of all ranks."""
        share, rank = rows // self.accelerator.num_processes, self.accelerator.process_index
        return slice(rank * share, (rank + 1) * share)

    def _dropped(self, output: dict[str, Any], stats: GroupStats) -> dict[str, Any]:
        dead = (~stats.kept).repeat_interleave(self.num_generations)  # (B of all ranks,)
        mine = self._mine(len(dead))
        output = silence(output, dead[mine])
        if self.scale_rewards == "batch":
            output["advantages"] = self._batch_advantages(self._weighted().masked_fill(dead, torch.nan))[mine]
        output["num_items_in_batch"] = self.accelerator.gather(loss_mask(output).sum()).sum()
        self.group_log.used(int(stats.kept.sum()))
        return output

    def _batch_advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        """Divided by the std over the groups that are used; (B,)."""
        return group_advantages(rewards, self.num_generations, "batch", self.std_estimator)

    def _refilled(self, inputs: list[Row]) -> dict[str, Any]:
        wanted = len(inputs) * self.accelerator.num_processes // self.num_generations
        self.further_prompts.put(self._whole_prompts(inputs))
        live, expired = self._fresh_groups()
        dead, reused, drawn = None, count(live), 0
        marks, sizes = {name: len(values) for name, values in self._metrics["train"].items()}, []
        for _ in range(1 + self.max_rounds):
            if count(live) >= wanted:
                break
            seen = drawn if self._may_carry else 0
            number = groups_to_draw(wanted - count(live), count(live) - reused, seen, wanted, self._unit)
            new, kept = self._generate_groups(self.further_prompts.take(number))
            live = join_groups([live, new.take(kept.nonzero().flatten().tolist())])
            dead = join_groups([dead, new.take((~kept).nonzero().flatten().tolist())])
            drawn += number
            sizes.append(number)
        merge_metrics(self._metrics["train"], marks, sizes)
        used = min(count(live), wanted)
        self.carried = live.take(range(used, len(live))) if live else None
        if self.carried is not None and self._may_carry:
            self.carried = self._scored_now(self.carried)
        further = max(0, drawn - wanted + reused)
        self.group_log.refilled(further, expired, reused, count(self.carried), wanted - used)
        self.group_log.used(used)
        self._say_what_is_missing(used, wanted)
        return self._batch_of(live.take(range(used)) if live else None, dead, wanted - used)

    def _fresh_groups(self) -> tuple[Groups | None, int]:
        """Of the groups carried here those whose policy is not too old, and how many were."""
        if self.carried is None:
            return None, 0
        ages = [self.state.global_step - step for step in self.carried.steps]
        fresh = [i for i, age in enumerate(ages) if age <= self.max_staleness]
        return self.carried.take(fresh), len(ages) - len(fresh)

    def _say_what_is_missing(self, used: int, wanted: int) -> None:
        if used < wanted and not self._said_missing and self.accelerator.is_main_process:
            self._said_missing = True
            logger.warning(
                f"Step {self.state.global_step + 1}: after {self.max_rounds} further rounds {used} of {wanted} groups have "
                "signal. The step goes on with them, divided by what they hold. groups/missing counts this from here on; "
                "more group_filter_max_rounds or num_generations find more."
            )

    def _whole_prompts(self, inputs: list[Row]) -> list[Row]:
        """The prompts of all ranks, one row a group."""
        first = self._mine(len(inputs) * self.accelerator.num_processes).start
        mine = [row for i, row in enumerate(inputs) if (first + i) % self.num_generations == 0]
        return gather_object(mine) if self.accelerator.num_processes > 1 else mine

    def _generate_groups(self, prompts: list[Row]) -> tuple[Groups, torch.Tensor]:
        """A generation of these prompts alone: the groups of all ranks, and which of them have signal, (N,) bool."""
        rows = [dict(row) for row in prompts for _ in range(self.num_generations)]
        # A group may be used when the policy has moved on. Where its log-probs cannot be noted then, let TRL note them now,
        # which it does where a generation is not trained on within one optimizer step.
        now = self._may_carry and not self._may_score_later
        iterations = self.args.gradient_accumulation_steps + 1 if now else self.num_iterations
        with overridden(self, num_iterations=iterations):
            table = super()._generate_and_score_completions(rows[self._mine(len(rows))])
        if not is_table(table):
            raise ValueError("group_filter: refill does not take prompts with images. Write group_filter: drop.")
        stats = self._judge()
        self._observe(prompts, stats)
        if self.accelerator.num_processes > 1:
            table = join_rows(gather_object([moved(table, "cpu")]))
        table = unscored(table) if self._may_carry else table
        rewards = self._weighted().to(table["advantages"].device)
        return Groups(table, rewards, (self.state.global_step,) * len(prompts)), stats.kept

    def _batch_of(self, live: Groups | None, dead: Groups | None, missing: int) -> dict[str, Any]:
        """This rank's rows of the groups with signal, filled up with silenced ones."""
        filler = silenced(dead.take(range(missing))) if missing else None
        groups = join_groups([live, filler])
        table = dict(groups.table)
        if self.scale_rewards == "batch":
            rewards = groups.rewards.clone()
            rewards[len(rewards) - missing * self.num_generations :] = torch.nan
            table["advantages"] = self._batch_advantages(rewards)
        table["num_items_in_batch"] = loss_mask(table).sum()
        mine = self._mine(len(groups.rewards))
        rows = torch.arange(mine.start, mine.stop, device=groups.rewards.device)
        return moved(take_rows(table, rows), self.accelerator.device)


def count(groups: Groups | None) -> int:
    return 0 if groups is None else len(groups)


def check_filter(trainer: Any) -> None:
    """Refuse what does not go with a filter of groups.

    Raises:
        ValueError: naming it and what to write instead.
    """
    if trainer.group_filter not in FILTERS:
        raise ValueError(f"group_filter is {trainer.group_filter!r}: write one of {', '.join(FILTERS)}.")
    if trainer.group_filter == "off":
        return
    if trainer.loss_normalization != "step":
        raise ValueError(
            f"group_filter: {trainer.group_filter} needs loss_normalization: step, which counts what is left of a step."
        )
    if trainer.multi_objective_aggregation != "sum_then_normalize":
        raise ValueError(
            f"group_filter: {trainer.group_filter} needs multi_objective_aggregation: sum_then_normalize; the other "
            "divides by a standard deviation over all groups, those left out, too."
        )
