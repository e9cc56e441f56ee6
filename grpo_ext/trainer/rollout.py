"""From prompts to scored completions: sample, judge, compare within groups, fill the step, score old and reference.

prompts ──► Sampler ──► Judge ──► advantages ──► keep, drop or refill groups ──► old and reference log-probs ──► Scored
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_ext.curriculum.group_log import GroupLog
from grpo_ext.environments.begin import Begin
from grpo_ext.environments.episode import Episode, instances
from grpo_ext.objective.schedule import TemperatureSchedule
from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.seams import trl as seam
from grpo_ext.step.groups import GroupRule, Groups, GroupStats
from grpo_ext.step.judge import AdvantageRule, EndRule, by_token, fill_unscored
from grpo_ext.step.metrics import episode_figures, length_figures, reward_figures
from grpo_ext.step.ranks import Ranks
from grpo_ext.step.records import Generation, Scored
from grpo_ext.step.refill import Filled, RefillRule, first_round, refill
from grpo_ext.step.tables import join, table_of
from grpo_ext.trainer.ahead import Ahead
from grpo_ext.trainer.judging import Judge, Judged, Row
from grpo_ext.trainer.old_and_reference import OldAndReference
from grpo_ext.trainer.prompt_order import PromptOrder
from grpo_ext.trainer.samples import Samples
from grpo_ext.trainer.trl_path import scored_by_trl

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Rollout:
    """Makes the completions that a trainer trains on."""

    trainer: Any
    sampler: Sampler
    judge: Judge
    old_and_reference: OldAndReference
    order: PromptOrder
    samples: Samples
    ranks: Ranks
    ends: EndRule
    training: AdvantageRule
    evaluation: AdvantageRule
    groups: GroupRule
    outcome: int  # the index of the reward that judges the groups
    refill: RefillRule
    schedule: TemperatureSchedule
    by_trl: bool  # TRL generates, for images
    begin: Begin | None  # makes the episodes of rows; `None`: a completion is one turn
    # Entries of an environment's state with the weights of the rewards that read them, if each turn has an advantage; `None`:
    # a completion has one advantage.
    turn_weights: dict[str, float] | None
    ahead: Ahead | None  # `None`: the sampler and the trainer take turns
    following: Callable[[], list[Row] | None]  # this rank's rows of the next generation; `None` after the last one
    carried: Groups | None = None  # with signal, for the next generation; the same on all ranks

    def __post_init__(self) -> None:
        self.group_filter: str = self.trainer.args.group_filter  # "off", "drop" or "refill"
        self.log = GroupLog(self.group_filter)
        self._said_missing = False

    def __call__(self, rows: list[Row]) -> Scored:
        """Return scored completions of this rank's rows; the copies of one prompt are adjacent."""
        if not self.trainer.model.training:
            judged = self.generate(rows)
            self._record([judged])
            return judged.table
        self.log.start()
        if self.group_filter == "refill":
            table = self._refilled(rows)
        else:
            judged = self.generate(rows)
            self._record([judged])
            table = self._filtered(judged)
        self._log_groups()
        return table

    def watch_trl(self, rows: list[Row], table: dict[str, Any]) -> dict[str, Any]:
        """For `preset: trl`: count, observe and hand out the completions that TRL has made, and return them unchanged."""
        self.judge.count_failures()
        judged = scored_by_trl(self.trainer, rows, table, self.ends, self._rule)
        self.old_and_reference.check_sync(judged.table)
        self.samples.hand_out(replace(judged, advantages=seam.last_completions(self.trainer, len(judged.rewards))[3]))
        if self.trainer.model.training:
            self.log.start()
            self._judge_groups(self._seen_prompts(rows), judged)
            self._log_groups()
        return table

    # ---- one generation

    def generate(self, rows: list[Row], scored: bool = True) -> Judged:
        """Complete these rows and judge the completions; with `scored`, also score old and reference."""
        if self.by_trl:
            with seam.whole_table(self.trainer, len(rows) * self.ranks.count):
                found = seam.trl_generation(self.trainer, rows)
                self.judge.count_failures()
                judged = scored_by_trl(self.trainer, rows, found, self.ends, self._rule)
            self.old_and_reference.check_sync(judged.table)
            return replace(judged, table=self.old_and_reference(judged.table)) if scored else judged
        episodes = self.begin(rows) if self.begin else []
        self._check_resets(episodes)
        prompts = [episode.prompt for episode in episodes] or [row["prompt"] for row in rows]
        generation = self._generation(prompts, episodes)
        if episodes:
            counts = [(e.turns, e.world.failures, e.world.calls, e.world.failed_calls) for e in episodes]
            seam.log_figures(self.trainer, episode_figures(counts, bool(episodes[0].tokens.tools), self.ranks))
        ids = generation.completion_ids
        completions: Any = generation.messages
        if completions is None:
            completions = seam.completions_of(self.trainer, prompts, generation.prompt_ids, ids)
        rows = [
            {**row, **{name: v[i] if isinstance(v, list) else v for name, v in generation.extra_fields.items()}}
            for i, row in enumerate(rows)
        ]
        self.judge.begin(rows, prompts, completions, ids)
        truncated = generation.cut or self.ends.truncated(generation.prompt_ids, ids)
        left_out = torch.tensor(truncated) & self.trainer.mask_truncated_completions
        table = table_of(generation, seam.pad_token(self.trainer), left_out, self.ranks.device)
        table = self.old_and_reference.with_sampler_logps(table)
        if self.ahead is None:  # else the completions may be of older weights
            self.old_and_reference.check_sync(table)
        table = self.old_and_reference(table) if scored else table
        rule = self._rule
        given = self.judge.rewards(rows, prompts, completions, ids, instances(episodes))
        rewards = fill_unscored(given, rule.num_generations)
        advantages, mine = rule.advantages(rewards), self.ranks.mine(len(rewards))
        table = replace(table, advantages=advantages[mine], signal=rule.signal(rewards)[mine].float())
        if self.turn_weights is not None:
            gains = self.ranks.gather_objects([episode.gains(self.turn_weights) for episode in episodes])
            table = replace(table, advantages=by_token(table, rule.turn_advantages(rewards, gains)[mine]))
        seam.keep_completions(self.trainer, prompts, completions, rewards, advantages)
        masks = generation.tool_mask
        lengths = [len(row) for row in ids] if masks is None else [sum(mask) for mask in masks]
        counted = table.completion_mask.any(1).tolist()
        logged = [e.logged(self.turn_weights, counts) for e, counts in zip(episodes, counted, strict=False)]
        return Judged(rows, prompts, completions, truncated, table, given, rewards, advantages, lengths, logged)

    def _check_resets(self, episodes: list[Episode]) -> None:
        """`ValueError` on all ranks if no environment could be reset: what it says would be trained on."""
        failed = [episode.prompt[-1]["content"] for episode in episodes if episode.world.failures]
        begun = torch.tensor(float(len(episodes) - len(failed)), device=self.ranks.device)
        if self.begin is not None and self.ranks.total(begun) == 0:
            raise ValueError(
                f"No environment could be reset. A prompt with its error: {(failed or ['on another rank'])[0][-500:]}"
            )

    def _generation(self, prompts: list[Any], episodes: list[Episode]) -> Generation:
        """Return the generation that was asked for ahead, or else sample one; ask for the next one."""
        found, training, step = None, self.trainer.model.training, self.trainer.state.global_step
        self.wait()  # the sampler must be free, also for an evaluation
        if self.ahead is not None and training and (found := self.ahead.take(step)) is not None:
            seam.log_figures(self.trainer, {**self.ahead.figures(), "overlap/age": step - found.policy_step})
        if found is None:
            request = self._request(prompts, episodes)
            self.sampler.load_weights(request.policy_step)
            self.sampler.submit(request)
            found = self.sampler.collect()
        if training and self.group_filter != "refill":
            self._ask_ahead()
        return found

    def _ask_ahead(self) -> None:
        """Ask for the next generation, whose completions the weights of this step sample."""
        if self.ahead is None or (rows := self.following()) is None:
            return
        size, drawn, due = self.trainer.num_generations, None, self.trainer.state.global_step + self.refill.between
        if self.group_filter == "refill":
            supply, wanted = self.order.further, len(rows) * self.ranks.count // size
            assert supply is not None
            supply.put(self._whole_prompts(rows))
            drawn = supply.take(first_round(wanted, self.carried, due, self.refill))
            copies = [row for row in drawn for _ in range(size)]
            rows = copies[self.ranks.mine(len(copies))]
        request = self._request([row["prompt"] for row in rows], []) if rows else None
        if request is not None:
            self.sampler.load_weights(request.policy_step)
            self._probe(request)
        self.ahead.ask(request, drawn, due)

    def _probe(self, request: Request) -> None:
        """Let the sampler write a few tokens with the weights that it has just got, if these are checked.

        The difference to the trainer's log-probs is that of the two engines alone; later it is also that of the weights.
        """
        if (due := self.old_and_reference.sync_check) is not None and due.due:
            found = self.sampler.sample_few(request)
            table = table_of(found, seam.pad_token(self.trainer), torch.zeros(len(found.prompt_ids)).bool(), self.ranks.device)
            self.old_and_reference.check_sync(table)

    def _request(self, prompts: list[Any], episodes: list[Episode]) -> Request:
        state, schedule = self.trainer.state, self.schedule
        temperature = schedule.at(state.global_step, state.max_steps)
        if schedule.moves:
            seam.log_figures(self.trainer, {"sampling/temperature": temperature})
        ids = [episode.prompt_ids for episode in episodes]
        if not episodes and not self.sampler.tokenizes:
            ids = seam.prompt_tokens(self.trainer, prompts)
        for episode, prompt in zip(episodes, ids, strict=False):
            episode.room = self.ends.room(len(prompt))
        return Request(prompts, ids, self._rule.num_generations, state.global_step, temperature, episodes)

    @property
    def _rule(self) -> AdvantageRule:
        return self.training if self.trainer.model.training else self.evaluation

    # ---- groups

    def _filtered(self, judged: Judged) -> Scored:
        """Return all groups, or with `group_filter: drop` only those with signal."""
        stats = self._judge_groups(self._seen_prompts(judged.rows), judged)
        if self.group_filter != "drop":
            return judged.table
        dead = (~stats.kept).repeat_interleave(self._rule.num_generations)  # (B of all ranks,)
        table = judged.table.without(dead[self.ranks.mine(len(dead))])
        return self._scaled(table, judged.rewards.masked_fill(dead.unsqueeze(1), torch.nan))

    def _refilled(self, rows: list[Row]) -> Scored:
        """Return as many groups with signal as the step should have groups."""
        size, step, made = self._rule.num_generations, self.trainer.state.global_step, []
        supply, rule = self.order.further, self.refill
        assert supply is not None
        # If the sampler does not return the tokens that it kept, a pass finds them now, before the policy changes.
        finds_kept = rule.max_staleness > 0 and self.old_and_reference.finds_kept

        def complete(prompts: list[Row]) -> tuple[Groups, Tensor]:
            copies = [dict(row) for row in prompts for _ in range(size)]
            judged = self.generate(copies[self.ranks.mine(len(copies))], scored=False)
            if self.by_trl and self.ranks.any(bool(judged.table.model_inputs)):
                raise ValueError("group_filter: refill does not take prompts with images. Write group_filter: drop.")
            made.append(judged)
            live = self._judge_groups(prompts, judged).kept
            table = self.old_and_reference.with_kept(judged.table) if finds_kept else judged.table
            if self.ranks.count > 1:
                table = join(self.ranks.gather_objects([table.on("cpu")])).on(self.ranks.device)
            return Groups(table, judged.rewards, tuple(map(int, table.policy_step[::size]))), live

        drawn = None if self.ahead is None else self.ahead.prompts(step)
        if drawn is None:
            supply.put(self._whole_prompts(rows))

        def take(number: int) -> list[Row]:
            nonlocal drawn
            found, drawn = drawn, None
            return found or supply.take(number)

        wanted = len(rows) * self.ranks.count // size
        filled = refill(wanted, take, complete, self.carried, step, rule)
        if made:
            self._record(made)
        self.carried = filled.carried
        if self.carried is not None and rule.max_staleness > 0:
            self.carried = replace(self.carried, table=self.old_and_reference.scored_everywhere(self.carried.table))
        self.log.filled = filled
        self._ask_ahead()
        self._say_what_is_missing(filled, wanted)
        mine = self.ranks.mine(len(filled.groups.table))
        table = filled.groups.table.take(torch.arange(mine.start, mine.stop))
        return self.old_and_reference(self._scaled(table, filled.groups.rewards))

    def _scaled(self, table: Scored, rewards: Tensor) -> Scored:
        """With `scale_rewards: batch`, divide this rank's advantages by the std over the groups that are used.

        `rewards` (B of all ranks, R) are NaN for groups that are not used.
        """
        if self._rule.scale_rewards != "batch":
            return table
        mine = self.ranks.mine(len(rewards))
        return replace(table, advantages=self._rule.advantages(rewards)[mine].to(table.advantages))

    def _judge_groups(self, prompts: list[Row], judged: Judged) -> GroupStats:
        """Judge the groups of all ranks, for the log and, with their prompts, for the curriculum."""
        stats = self.groups.judge(judged.given[:, self.outcome])
        self.log.generated(stats)
        self.order.observe(prompts, stats)
        return stats

    def _seen_prompts(self, rows: list[Row]) -> list[Row]:
        """Return the prompts of all ranks if the curriculum learns from them."""
        return [] if self.order.curriculum.rates is None else self._whole_prompts(rows)

    def _whole_prompts(self, rows: list[Row]) -> list[Row]:
        """Return the prompts of all ranks, one row per group."""
        first, size = self.ranks.mine(len(rows) * self.ranks.count).start, self.trainer.num_generations
        return self.ranks.gather_objects([row for i, row in enumerate(rows) if (first + i) % size == 0])

    def _say_what_is_missing(self, filled: Filled, wanted: int) -> None:
        if filled.missing and not self._said_missing and self.trainer.accelerator.is_main_process:
            self._said_missing = True
            logger.warning(
                f"Step {self.trainer.state.global_step + 1}: after {self.refill.max_rounds} further rounds "
                f"{filled.used} of {wanted} groups have signal. The step trains on these, and its loss is divided by their "
                "counts. groups/missing counts the missing groups from now on. A larger group_filter_max_rounds or "
                "num_generations finds more."
            )

    # ---- logs

    def _record(self, made: list[Judged]) -> None:
        """Log the rounds of one generation together, and hand out their completions."""
        for judged in made:
            self.samples.hand_out(judged)
        if self.by_trl:
            return  # TRL has logged it
        lengths = torch.tensor([n for judged in made for n in judged.lengths], device=self.ranks.device)
        truncated = torch.tensor([cut for judged in made for cut in judged.truncated], device=self.ranks.device)
        prompts = sum(int(judged.table.prompt_mask.sum()) for judged in made)
        tokens = self.ranks.total(torch.tensor(prompts, device=self.ranks.device) + lengths.sum())
        seam.count_tokens(self.trainer, int(tokens))
        rewards = torch.cat([judged.rewards for judged in made])
        rule, names = self._rule, self.trainer.reward_func_names
        figures = length_figures(self.ranks.gather(lengths), self.ranks.gather(truncated))
        figures |= reward_figures(names, rewards, rule.weighted(rewards), rule.signal(rewards))
        seam.log_figures(self.trainer, figures)

    def _log_groups(self) -> None:
        seam.log_figures(self.trainer, self.log.figures())
        if (advice := self.log.advice()) and self.trainer.accelerator.is_main_process:
            logger.warning(advice)

    def wait(self) -> None:
        """Wait for the generation under way, if there is one. All ranks call it."""
        if self.ahead is not None:
            self.ahead.wait()

    def stop(self) -> None:
        """Forget the generation under way, and end what the sampler has started."""
        self.sampler.stop()
        if self.ahead is not None:
            self.ahead.drop()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of groups and prompts, the same on all ranks, and of the generation ahead."""
        ahead = self.ahead and self.ahead.state_dict()
        return {"ahead": ahead, "carried": self.carried, "order": self.order.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.stop()
        self.carried = state["carried"] and state["carried"].on(self.ranks.device)
        self.order.load_state_dict(state["order"])
        if self.ahead is not None and state["ahead"] is not None:
            self.ahead.load_state_dict(state["ahead"])
