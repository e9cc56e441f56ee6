"""Make a generation: sample completions, and compute their log-probs, rewards and advantages.

prompts ──► Sampler ──► old and reference log-probs ──► Judge ──► advantages ──► Judged
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import grpo_ext.trainer.settings as settings
from grpo_ext.common.columns import TASK
from grpo_ext.common.hashes import prompt_id
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_figures import (
    counts_of,
    episode_figures,
    figures_by_environment,
)
from grpo_ext.environments.failures import refuse_many
from grpo_ext.environments.open_environments import close_played
from grpo_ext.environments.played_episodes import instances, reports_of, seconds_alone
from grpo_ext.objective.advantage import has_signal
from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.samplers.partial import PartialSampler
from grpo_ext.samplers.sync_check import SyncCheck
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams import trl as seam
from grpo_ext.seams.port import Row
from grpo_ext.step.groups import GroupShape
from grpo_ext.step.judge import AdvantageRule, by_token, fill_unscored, group_outcomes
from grpo_ext.step.records import Generation, Ranks, Scored, table_of
from grpo_ext.trainer.ahead import Ahead
from grpo_ext.trainer.judging import Judge, Judged, outcomes_of_groups, tie_break_of
from grpo_ext.trainer.phases import Phases
from grpo_ext.trainer.policy import OldAndReference
from grpo_ext.trainer.port import Trainer
from grpo_ext.trainer.trl_path import scored_by_trl
from grpo_ext.trainer.turn_credit import TurnCredit

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sampled:
    """This rank's completions before they are judged. Lists have one entry per completion."""

    generation: Generation
    rows: list[Row]  # with the columns that the generation adds
    prompts: list[Any]
    completions: list[Any]  # strings, or lists of messages
    truncated: list[bool]
    episodes: list[Episode]  # empty if this package plays no episodes
    shape: GroupShape  # the groups of all ranks' completions


class Generations:
    """Generates completions for rows of the dataset, with rewards and advantages.

    An instance is called with this rank's rows. All ranks must call each method together.

    Args:
        trainer: the trainer, with the model, the rewards and the arguments.
        sampler: generates the completions, unless TRL does.
        scorer: computes the trainer's log-probs.
        judge: runs the rewards.
        ranks: the ranks of the run.
        by_trl: whether TRL generates, as it does for images and for tools that it calls.
        phases: measures the time of each phase.
        on_played: called in training with the number of failures of each episode that was played.
    """

    def __init__(
        self,
        trainer: Trainer,
        sampler: Sampler,
        scorer: Scorer,
        judge: Judge,
        ranks: Ranks,
        by_trl: bool,
        phases: Phases,
        on_played: Callable[[list[int]], None],
    ):
        self.trainer = trainer
        self.sampler = sampler
        self.judge = judge
        self.ranks = ranks
        self.old_and_reference = OldAndReference(trainer, sampler, scorer, ranks)
        self.sync_check: SyncCheck | None = None  # `None` if the trainer's own model samples
        if sampler.abilities.reports_weights:
            self.sync_check = SyncCheck(trainer, sampler, scorer, ranks)
        self.by_trl = by_trl  # whether TRL generates: for images, and for tools that it calls
        self.phases = phases
        # called with the number of failures in each episode that is trained on
        self.on_played = on_played
        self.ends = settings.end_rule(trainer)
        self.begin = settings.episodes_of(trainer, sampler, by_trl)
        self.turn_credit = TurnCredit(trainer)
        self.outcome_order = outcomes_of_groups(trainer)
        self.tie_break = tie_break_of(trainer)
        args = trainer.args
        ahead_sampler = sampler
        if args.partial_rollouts:
            rows = args.generation_batch_size // ranks.count
            # for generations requested ahead; evaluations use `sampler` itself
            ahead_sampler = PartialSampler(
                sampler, self.ends, args.partial_rollouts, rows, args.num_generations, ranks
            )
        self.ahead = Ahead(ahead_sampler)
        self._said_shut_out = False

    def made_by_trl(self, rows: list[Row], table: dict[str, Any]) -> Judged:
        """Judge the completions that TRL has just generated and scored.

        Args:
            rows: the rows of this rank, one per completion.
            table: the mapping that TRL returned for them.

        Raises:
            RewardFailure: on all ranks, if a reward failed too often.
            EngineFailure: on all ranks, if the engine's weights differ from the trainer's.
            ValueError: if `table` has a field that is unknown to this package.
        """
        self.judge.count_failures()
        failed = self.judge.failures(len(rows))
        judged = scored_by_trl(
            self.trainer, rows, table, self.ends, self.rule, self.outcome_order, failed
        )
        if self.sync_check is not None:
            self.sync_check.check(judged.table)
        return replace(judged, tasks=self._tasks(judged.rows))

    def __call__(
        self,
        rows: list[Row],
        score_policies: bool = True,
        on_sampled: Callable[[], None] | None = None,
    ) -> Judged:
        """Generate completions for rows, and return them with rewards and advantages.

        Args:
            rows: the rows of the dataset, one per completion of this rank.
            score_policies: whether to compute old and reference log-probs.
            on_sampled: called when the completions have been sampled, before they are judged; not
                called if TRL generates.

        Raises:
            EnvironmentFailure: on all ranks, if the episodes' environment failed too often.
            RewardFailure: on all ranks, if a reward failed too often.
            EngineFailure: if the engine fails, or its weights differ from the trainer's.
            ValueError: if no episode's prompt leaves room for a completion, if the sampler returned
                too few log-probs, or if TRL returned a field that is unknown to this package.
            RuntimeError: if the reference needs kept tokens that the sampler did not return.
        """
        if self.by_trl:
            with seam.whole_table(self.trainer, len(rows) * self.ranks.count):
                judged = self.made_by_trl(rows, seam.trl_generation(self.trainer, rows))
            if not score_policies:
                return judged
            return replace(judged, table=self.old_and_reference(judged.table))
        sampled = self._sampled(rows, on_sampled)
        try:
            return self._scored_and_judged(sampled, score_policies)
        finally:
            self._close_environments(sampled.episodes)

    def _scored_and_judged(self, sampled: Sampled, score_policies: bool) -> Judged:
        """Compute rewards and log-probs of this rank's completions, and judge their groups.

        Old and reference log-probs are computed only with `score_policies`. A group may span
        several ranks.
        """
        ids = sampled.generation.completion_ids
        # begin now, so that rewards in worker processes run while the policies are scored
        left_out = [episode.left_out for episode in sampled.episodes]
        self.judge.begin(sampled.rows, sampled.prompts, sampled.completions, ids, left_out)
        table = self._scored(sampled, score_policies)
        with self.phases("rewards"):
            raw_rewards = self.judge.rewards(
                sampled.rows,
                sampled.prompts,
                sampled.completions,
                ids,
                instances(sampled.episodes),
                left_out,
            )
        return self._judged(sampled, table, raw_rewards)

    def complete(self, rows: list[Row]) -> Scored:
        """Generate completions for rows, and return them with only the sampler's log-probs.

        They are neither scored by the trainer nor judged.

        Args:
            rows: the rows of the dataset, one per completion of this rank, in whole groups.
        """
        sampled = self._sampled(rows, None)
        table = self._table(sampled.generation, sampled.truncated, sampled.episodes)
        self._close_environments(sampled.episodes)
        return table

    def _close_environments(self, episodes: list[Episode]) -> None:
        """Close the environments of `episodes`, which must be over."""
        if episodes:
            with self.phases("environment"):
                close_played(episode.rules for episode in episodes)

    def _sampled(self, rows: list[Row], on_sampled: Callable[[], None] | None) -> Sampled:
        """Generate completions for rows, as episodes if the run has an environment or tools.

        `on_sampled` is called when the completions have been sampled.

        Raises:
            EnvironmentFailure: on all ranks, if the episodes' environment failed too often.
        """
        episodes = self._begun(rows)
        self.check_environment(episodes)
        prompts = [episode.prompt for episode in episodes] or [row["prompt"] for row in rows]
        generation = self._generation(prompts, episodes)
        if generation.rows is not None:
            rows = generation.rows
            prompts = [row["prompt"] for row in rows]
        shape = self._shape(rows)
        if on_sampled is not None:
            on_sampled()
        self.check_environment(episodes)
        if episodes:
            self.phases.move(seconds_alone(episodes), "generation", "environment")
            self._log_episodes(episodes)
        ids = generation.completion_ids
        completions: Any = generation.messages or seam.completions_of(
            self.trainer, prompts, generation.prompt_ids, ids
        )
        return Sampled(
            generation=generation,
            rows=with_fields(rows, generation.extra_fields),
            prompts=prompts,
            completions=completions,
            truncated=generation.cut or self.ends.truncated(generation.prompt_ids, ids),
            episodes=episodes,
            shape=shape,
        )

    def _begun(self, rows: list[Row]) -> list[Episode]:
        """Begin an episode for each row; return an empty list if this package plays no episodes."""
        if self.begin is None:
            return []
        with self.phases("environment"):
            episodes = self.begin(rows)
        seconds_alone(episodes)  # discards the seconds of `reset`, which the phase has counted
        return episodes

    def _scored(self, sampled: Sampled, score_policies: bool) -> Scored:
        """Return the table of this rank's completions, with log-probs; all advantages are 0.

        Without `score_policies`, it contains only the sampler's log-probs. If `overlap` is off, the
        weights of a separate sampler are also checked.
        """
        table = self._table(sampled.generation, sampled.truncated, sampled.episodes)
        table = self.old_and_reference.with_sampler_logps(table)
        # with overlap, older weights may have sampled the completions
        if self.sync_check is not None and self.trainer.args.overlap == "off":
            self.sync_check.check(table)
        if not score_policies:
            return table
        with self.phases("scoring"):
            return self.old_and_reference(table)

    def _judged(self, sampled: Sampled, table: Scored, raw_rewards: Tensor) -> Judged:
        """Compute outcomes and advantages, and add the completions to TRL's logs.

        Args:
            sampled: this rank's completions.
            table: their table, with log-probs.
            raw_rewards: (B of all ranks, R), the rewards; NaN where a reward did not score.
        """
        generation = sampled.generation
        shape = sampled.shape
        failed = self.judge.failures(len(sampled.rows))
        # spread to groups of equal size: (N * largest, R) and (N * largest,)
        rule = replace(self.rule, num_generations=shape.largest)
        spread_rewards = shape.spread(raw_rewards)
        filled_rewards = fill_unscored(spread_rewards, shape.largest)
        spread_outcomes = group_outcomes(
            spread_rewards, self.outcome_order, shape.largest, shape.spread(failed)
        )
        ties = rule.ties(filled_rewards, spread_outcomes)
        advantages = shape.gather(rule.advantages(filled_rewards, ties))
        rewards = shape.gather(filled_rewards)
        outcomes = shape.gather(spread_outcomes)
        table = self._with_advantages(table, rewards, advantages, sampled.episodes, shape)
        right = outcomes[self.ranks.own_slice(len(outcomes))] >= self.trainer.args.pass_threshold
        table = replace(table, right=right.float())
        seam.keep_completions(
            self.trainer, sampled.prompts, sampled.completions, raw_rewards, advantages
        )
        lengths = [len(row) for row in generation.completion_ids]
        if generation.tool_mask is not None:
            lengths = [sum(mask) for mask in generation.tool_mask]
        counted = table.completion_mask.any(1).tolist()
        episode_logs = [
            episode.logged(self.turn_credit.weights(episode), is_counted)
            for episode, is_counted in zip(sampled.episodes, counted, strict=False)
        ]
        return Judged(
            rows=sampled.rows,
            prompts=sampled.prompts,
            completions=sampled.completions,
            truncated=sampled.truncated,
            table=table,
            raw_rewards=raw_rewards,
            rewards=rewards,
            advantages=advantages,
            outcomes=outcomes,
            lengths=lengths,
            shape=shape,
            tasks=self._tasks(sampled.rows),
            failed=failed,
            ties=ties,
            episodes=episode_logs,
        )

    def _log_episodes(self, episodes: list[Episode]) -> None:
        counts = counts_of(episodes)
        if self.trainer.model.training:
            self.on_played([count.failures for count in counts])
        all_counts = self.ranks.gather_objects(counts)
        figures = episode_figures(all_counts) | figures_by_environment(all_counts)
        seam.log_figures(self.trainer, figures)

    def _shape(self, rows: list[Row]) -> GroupShape:
        """Return the group sizes of the completions of all ranks.

        `rows` are the rows of this rank, one per completion.
        """
        size = self.rule.num_generations
        total = len(rows) * self.ranks.count
        if not self.trainer.model.training or self.trainer.args.max_slots_per_prompt == 1:
            return GroupShape.equal(total, size)
        first = self.ranks.own_slice(total).start
        # compare whole rows, because rows with the same prompt may have different answers
        slots = [prompt_id(row) for i, row in enumerate(rows) if (first + i) % size == 0]
        return GroupShape.of_slots(self.ranks.gather_objects(slots), size)

    def _tasks(self, rows: list[Row]) -> list[str]:
        """Return the task of each completion of all ranks; empty if any row has no task."""
        tasks = self.ranks.gather_objects([row.get(TASK) for row in rows])
        return tasks if all(isinstance(task, str) for task in tasks) else []

    def _table(
        self, generation: Generation, truncated: list[bool], episodes: Sequence[Episode] = ()
    ) -> Scored:
        """Return the table of a generation; all advantages are 0.

        An episode whose environment failed is left out of the loss, unless the environment has
        `on_failure: train`. With `mask_truncated_completions`, truncated completions are left out
        too.

        Args:
            generation: this rank's completions.
            truncated: whether each completion is truncated.
            episodes: the episode of each completion; empty if this package plays no episodes.
        """
        left_out = torch.tensor(truncated) & self.trainer.mask_truncated_completions
        if episodes:
            left_out = left_out | torch.tensor([episode.left_out for episode in episodes])
        return table_of(generation, seam.pad_token(self.trainer), left_out, self.ranks.device)

    def _with_advantages(
        self,
        table: Scored,
        rewards: Tensor,
        advantages: Tensor,
        episodes: list[Episode],
        shape: GroupShape,
    ) -> Scored:
        """Return a copy of this rank's table with `advantages` and `signal` set.

        With `credit: turn`, each turn has its own advantage, computed from the rewards and the
        gains of the turns (see `TurnCredit`). All ranks must call this method.

        Args:
            table: this rank's completions.
            rewards: (B of all ranks, R), the rewards after `fill_unscored`.
            advantages: (B of all ranks,), the advantages of whole completions.
            episodes: this rank's episodes; empty if this package plays no episodes.
            shape: the groups of all ranks.
        """
        own_rows = self.ranks.own_slice(len(rewards))
        if not self.turn_credit.applies:
            signal = shape.gather(has_signal(shape.spread(advantages, 0.0), shape.largest))
            own_advantages = advantages[own_rows]
        else:
            gains = self.ranks.gather_objects(
                [self.turn_credit.gains(episode) for episode in episodes]
            )
            credits = self.ranks.gather_objects([episode.rules.credit for episode in episodes])
            by_turn = torch.tensor([credit == "turn" for credit in credits], device=rewards.device)
            of_turns = self.rule.turn_advantages(rewards, gains)  # (B of all ranks, K)
            of_turns = torch.where(by_turn.unsqueeze(1), of_turns, advantages.unsqueeze(1))
            signal = has_signal(of_turns, self.rule.num_generations)
            own_advantages = by_token(table, of_turns[own_rows])
        return replace(table, advantages=own_advantages.float(), signal=signal[own_rows].float())

    def check_environment(self, episodes: list[Episode]) -> None:
        """Raise `EnvironmentFailure` on all ranks if an environment has failed too often."""
        if self.begin is not None:
            refuse_many(self.ranks.gather_objects(reports_of(episodes)))

    def _generation(self, prompts: list[Any], episodes: list[Episode]) -> Generation:
        """Return the generation that was requested ahead, or sample one if there is none.

        An evaluation always samples one.
        """
        training = self.trainer.model.training
        with self.phases("waiting"):
            self.ahead.wait()  # even an evaluation needs the sampler to be free
        start = time.monotonic()
        sampler = self.ahead.sampler
        generation = None
        if training:
            generation = self.ahead.take(self.trainer.state.global_step)
        if generation is not None:
            seam.log_figures(self.trainer, sampler.metrics(generation))
        else:
            request = self._request(prompts, episodes)
            sampler = self.sampler
            with self.phases("sync"):
                sampler.load_weights(request.policy_step)
            with self.phases("generation"):
                sampler.submit(request)
                generation = sampler.collect()
        if training:
            seconds = sampler.seconds or time.monotonic() - start
            seam.log_figures(self.trainer, {"sampling/generation_time": seconds})
        return generation

    def _probe(self, request: Request) -> None:
        """Check that a separate sampler has the weights that were just loaded.

        If a comparison is due and there are prompts, compare the log-probs of a few sampled tokens
        with the trainer's. At this point, they differ only because the engines differ; later, the
        weights will differ, too. If no comparison is due or there are no prompts, only check that
        the last update arrived. If `sync_check` is `None`, do nothing.

        Raises:
            EngineFailure: on all ranks, if the sampler's weights differ from the trainer's.
        """
        if self.sync_check is None:
            return
        if not self.sync_check.due or not request.prompt_ids:
            self.sync_check.refuse_stale()
            return
        generation = self.sampler.probe(request)
        truncated = [False] * len(generation.prompt_ids)
        self.sync_check.check(self._table(generation, truncated))

    def _request(self, prompts: list[Any], episodes: list[Episode]) -> Request:
        ids = [episode.prompt_ids for episode in episodes]
        if prompts and not episodes and not self.sampler.abilities.tokenizes_prompts:
            ids = seam.prompt_tokens(self.trainer, prompts)
        if episodes:
            self._limit(episodes)
        return Request(
            prompts, ids, self.rule.num_generations, self.trainer.state.global_step, episodes
        )

    def _limit(self, episodes: list[Episode]) -> None:
        """Limit each episode to the tokens for which its prompt leaves room.

        Warn once if a prompt leaves room for none.

        Raises:
            ValueError: on all ranks, if no episode of any rank has room for a token.
        """
        for episode in episodes:
            episode.limit(self.ends.room(len(episode.prompt_ids)))
        shut_out = [episode for episode in episodes if episode.ended]
        if not self.ranks.any(len(shut_out) < len(episodes)):
            raise ValueError(
                "No prompt of this generation leaves room for a completion in the engine's "
                f"context of {self.ends.context} tokens. Raise vllm_max_model_length, or shorten "
                "the prompts, including any text that `reset` returns."
            )
        if shut_out and not self._said_shut_out:
            self._said_shut_out = True
            longest = max(len(episode.prompt_ids) for episode in shut_out)
            logger.warning(
                f"{len(shut_out)} of {len(episodes)} episodes on this rank have a prompt that "
                "leaves no room for a completion in the engine's context of "
                f"{self.ends.context} tokens (the longest prompt has {longest}). These episodes "
                "are cut off before the first turn; completions/clipped_ratio counts them. Raise "
                "vllm_max_model_length, or shorten the prompts. This warning is shown only once."
            )

    @property
    def rule(self) -> AdvantageRule:
        """The rule for advantages, with the group size of training or of TRL's evaluation."""
        trainer = self.trainer
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        return AdvantageRule(
            size,
            trainer.reward_weights,
            scale_rewards=trainer.scale_rewards,
            std_estimator=trainer.args.std_estimator,
            aggregation=trainer.multi_objective_aggregation,
            tie_break=self.tie_break,
        )

    def ask(self, rows: list[Row], due: int) -> None:
        """Request completions for this rank's rows, to be trained on in step `due`.

        They are sampled with the current weights. If there are neither rows nor unfinished
        completions, nothing is sampled.

        Raises:
            EngineFailure: on all ranks, if the sampler's weights differ from the trainer's.
        """
        request = None
        if rows or self.ahead.sampler.has_unfinished:
            request = replace(self._request([row["prompt"] for row in rows], []), rows=rows)
            with self.phases("sync"):
                self.sampler.load_weights(request.policy_step)
                self._probe(request)
        self.ahead.ask(request, due)


def with_fields(rows: list[Row], extra_fields: dict[str, Any]) -> list[Row]:
    """Return copies of the rows with the columns in `extra_fields` added.

    A list in `extra_fields` contains one value per row; any other value is the same in all rows.
    """
    complete_rows = []
    for i, row in enumerate(rows):
        complete_row = dict(row)
        for name, column in extra_fields.items():
            complete_row[name] = column[i] if isinstance(column, list) else column
        complete_rows.append(complete_row)
    return complete_rows
