"""Compute old and reference log-probs before an update, and the loss of the update.

`OldAndReference` computes log-probs under the old (sampling) policy and the reference before
completions are trained on. Completions sampled by the same policy that takes the step need no extra
pass for their old log-probs: these are the detached log-probs of the step. An extra pass is needed
for completions that a later step trains on, for completions of another engine whose gradient is
corrected, and for carried groups.

`PolicyUpdate` computes the loss of micro-batches, and logs the metrics of each step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from grpo_ext.objective.correction import sampler_correction
from grpo_ext.objective.policy import Stat, ratios_move
from grpo_ext.samplers.base import Sampler
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams import trl as seam
from grpo_ext.seams.scoring import reference_of, without_checkpointing
from grpo_ext.step.cut import step_counts
from grpo_ext.step.loss import EntropyControl, LossSettings, old_logps, step_loss
from grpo_ext.step.metrics import StepStats, age_stats, sampler_stats
from grpo_ext.step.records import LossOutput, MicroBatch, Ranks, Scored
from grpo_ext.trainer.equal_bits import refuse_unequal
from grpo_ext.trainer.phases import Phases
from grpo_ext.trainer.port import Trainer


class OldAndReference:
    """Scores generations with the old policy and the reference before they are trained on."""

    def __init__(self, trainer: Trainer, sampler: Sampler, scorer: Scorer, ranks: Ranks):
        self.trainer = trainer
        self.sampler = sampler
        self.scorer = scorer
        self.ranks = ranks
        args = trainer.args
        # whether ratios compare the policy with the sampler, using the sampler's log-probs
        self.to_sampler = sampler.abilities.separate_engine and args.behaviour_policy == "sampler"
        # whether the gradient is corrected for the different log-probs of a separate engine
        self.corrects = (
            sampler.abilities.separate_engine
            and not self.to_sampler
            and args.vllm_importance_sampling_correction
        )
        self.outlives = ratios_move(
            args.gradient_accumulation_steps, args.steps_per_generation * args.num_iterations
        )
        self.finds_kept = scorer.params.truncated and not sampler.abilities.returns_kept_tokens

    def __call__(self, table: Scored) -> Scored:
        """Return the table with what the loss needs from the old policy and the reference.

        The columns are `old_per_token_logps`, `ref_per_token_logps`, `importance_sampling_ratio`
        and `kept`; each is computed only if it is needed.

        Raises:
            ValueError: if the importance-sampling correction is on, but the sampler returned no
                log-probs.
            RuntimeError: if the reference needs the kept tokens, but the sampler did not return
                them although its abilities say that it does.
        """
        with torch.no_grad(), without_checkpointing(self.trainer):
            outlives = self.outlives and self.trainer.model.training
            if outlives or self.corrects or (self.finds_kept and self.trainer.beta):
                table = self._old(table)
            if self.trainer.beta:
                table = self._reference(table)
        if self.corrects:
            table = self._corrected(table)
        return table

    def with_sampler_logps(self, table: Scored) -> Scored:
        """Return the table with the sampler's log-probs as old log-probs.

        This applies only with `behaviour_policy: sampler` and a separate sampler; otherwise, the
        table is returned unchanged.

        Raises:
            ValueError: if the sampler did not return the log-prob of every token in the loss.
        """
        if not self.to_sampler:
            return table
        sampled = table.sampling_per_token_logps
        if sampled is None:
            raise ValueError(
                "`behaviour_policy: sampler` needs the sampler's log-probs, but the sampler "
                f"({self.sampler.name}) returned none. Make the sampler return them, or remove "
                "behaviour_policy and set `vllm_importance_sampling_correction: false`, which "
                "leaves the difference between sampler and trainer uncorrected."
            )
        if (sampled.isnan() & table.loss_mask.bool()).any():
            raise ValueError(
                "`behaviour_policy: sampler` needs the log-prob of every sampled token, but the "
                f"sampler ({self.sampler.name}) did not return all of them. Make the sampler "
                "return all, or set `behaviour_policy: decoupled`, which uses the trainer's "
                "log-prob where one is missing."
            )
        return replace(table, old_per_token_logps=sampled.nan_to_num(nan=0.0))

    def with_kept(self, table: Scored) -> Scored:
        """Return the table with its old log-probs and, with top-k, top-p or min-p, its kept tokens.

        Missing log-probs are computed in a forward pass of the policy, and so are the kept tokens
        if the sampler does not return them. Call this before the policy changes.
        """
        with torch.no_grad(), without_checkpointing(self.trainer):
            return self._old(table)

    def scored_everywhere(self, table: Scored) -> Scored:
        """Return `table`, which holds the completions of all ranks, with complete old log-probs.

        Rows with missing log-probs are scored as a whole, a share of them on each rank. All ranks
        must call this with the same table, before the policy changes, that is, before the step that
        follows the generation.
        """
        old = table.old_per_token_logps
        if old is None:
            old = torch.full((len(table), table.width), torch.nan)
        old = old.cpu()
        rows = old.isnan().any(1).nonzero().flatten()  # (b,)
        if len(rows) == 0:
            return table
        ranks = self.ranks
        share = math.ceil(len(rows) / ranks.count)  # all ranks score the same number of rows
        first = ranks.index * share
        places = torch.arange(first, first + share).clamp(max=len(rows) - 1)
        own_rows = table.take(rows[places], trim=False).on(ranks.device)
        with torch.no_grad(), without_checkpointing(self.trainer):
            own_logps = self.scorer.score(self.trainer.model, own_rows, self._block).logps
        logps = torch.cat(ranks.gather_objects([own_logps.cpu()]))[: len(rows)]
        device = table.completion_ids.device
        return replace(table, old_per_token_logps=old.index_copy(0, rows, logps).to(device))

    @property
    def _block(self) -> int:
        args = self.trainer.args
        if self.trainer.model.training:
            return args.per_device_train_batch_size
        return args.per_device_eval_batch_size

    def _old(self, table: Scored) -> Scored:
        old = table.old_per_token_logps
        needs_kept = self.finds_kept and table.kept is None
        if old is not None and not old.isnan().any() and not needs_kept:
            return table
        scores = self.scorer.score(self.trainer.model, table, self._block)
        logps = scores.logps if old is None else torch.where(old.isnan(), scores.logps, old)
        return replace(table, old_per_token_logps=logps, kept=scores.kept)

    def _reference(self, table: Scored) -> Scored:
        if self.scorer.params.truncated and table.kept is None:
            raise RuntimeError(
                "With truncated sampling, the reference needs the tokens that the policy kept, but "
                f"the sampler ({self.sampler.name}) did not return them. Remove top_k, top_p and "
                "min_p, or set `beta: 0` to train without the reference."
            )
        with reference_of(self.trainer) as model:
            logps = self.scorer.score(model, table, self._block).logps
        return replace(table, ref_per_token_logps=logps)

    def _corrected(self, table: Scored) -> Scored:
        args = self.trainer.args
        old = table.old_per_token_logps
        sampled = table.sampling_per_token_logps
        assert old is not None
        if sampled is None:
            raise ValueError(
                f"The sampler ({self.sampler.name}) returned no log-probs, which are needed for "
                "the importance-sampling correction. Make the sampler return them, or set "
                "`vllm_importance_sampling_correction: false` to train without the correction."
            )
        ratio = sampler_correction(
            old,
            sampled,
            table.loss_mask,
            args.vllm_importance_sampling_mode,
            args.vllm_importance_sampling_clip_min,
            args.vllm_importance_sampling_clip_max,
        )
        return replace(table, importance_sampling_ratio=ratio)


@dataclass
class PolicyUpdate:
    """Scores micro-batches and computes their losses."""

    trainer: Trainer
    scorer: Scorer
    settings: LossSettings
    entropy: EntropyControl
    ranks: Ranks
    phases: Phases
    settled: Callable[[dict[str, float]], None]  # called with the metrics of each optimizer step
    _stats: StepStats = field(default_factory=StepStats)

    def loss(self, model: nn.Module, batch: MicroBatch, accumulation: int) -> Tensor:
        """Return a micro-batch's share of the step's loss, with gradient.

        The last micro-batch of a step logs the metrics of the step.

        Args:
            model: the wrapped model that is trained.
            batch: the micro-batch.
            accumulation: the number of micro-batches in the step, as the trainer counts them.

        Raises:
            EngineFailure: on all ranks, in the last micro-batch of a step, if `deterministic` is
                true and the log-probs of sampler and trainer differ.
        """
        trainer = self.trainer
        rows = batch.rows
        if trainer.model.training and not batch.filler:
            self.phases.runs(rows)
        scores = self.scorer.score(model, rows, aux_loss=trainer.aux_loss_enabled)
        entropy_mask = None  # (B, T)
        if trainer.top_entropy_quantile < 1.0:
            assert scores.entropies is not None
            entropy_mask = trainer.get_high_entropy_mask(
                scores.entropies, rows.loss_mask, 1 - trainer.top_entropy_quantile
            )
        weight = self.entropy.weight(*seam.entropy_state(trainer))
        output = step_loss(scores, batch, self._settings_now(), weight, entropy_mask, accumulation)
        self._note(output, batch, scores.logps)
        if batch.last:
            self._settle()
        return output.loss

    def _settings_now(self) -> LossSettings:
        """Return the settings of the loss, with the current values of the trainer's attributes.

        As in TRL, callbacks may change these attributes during training.
        """
        trainer = self.trainer
        options = replace(
            self.settings.options,
            epsilon_low=trainer.epsilon_low,
            epsilon_high=trainer.epsilon_high,
        )
        return replace(
            self.settings,
            options=options,
            beta=trainer.beta,
            importance_sampling_level=trainer.importance_sampling_level,
            off_policy_mask_threshold=trainer.off_policy_mask_threshold,
            router_aux_loss_coef=trainer.router_aux_loss_coef,
        )

    def whole_batch(self, rows: Scored) -> MicroBatch:
        """Return a batch of TRL's evaluation as the only micro-batch of a step.

        All ranks must call this method.
        """
        counts, useful, _ = step_counts([rows], self.ranks)
        return MicroBatch(rows, counts, useful)

    def _note(self, output: LossOutput, batch: MicroBatch, logps: Tensor) -> None:
        """Record the metrics of a micro-batch; `logps` (B, T) are the current policy's."""
        trainer = self.trainer
        stats = output.stats
        rows = batch.rows
        sampled = rows.sampling_per_token_logps
        if trainer.model.training and sampled is not None:
            # With `behaviour_policy: sampler`, the old log-probs are the sampler's own, so there
            # would be nothing to compare.
            if trainer.args.behaviour_policy != "sampler":
                logps = old_logps(rows, logps)
            ratio = rows.importance_sampling_ratio
            stats = stats | sampler_stats(logps, sampled, rows.loss_mask, ratio)
        if trainer.model.training and trainer.args.overlap != "off":
            step = trainer.state.global_step
            stats = stats | age_stats(rows.policy_step, rows.loss_mask, step)
        if batch.filler:  # its metrics are meaningless
            stats = {name: Stat(stat.value, 0.0, stat.kind) for name, stat in stats.items()}
        self._stats.add(stats)

    def _settle(self) -> None:
        figures = self._stats.merge(self.ranks)
        if self.trainer.model.training:
            if self.trainer.args.deterministic:
                refuse_unequal(figures)
            self.settled(figures)
        if self.trainer.model.training and self.entropy.enabled:
            self._move_coef(figures.get("entropy/high", figures.get("entropy")))
            figures["entropy_coef"] = self.trainer.entropy_coef
        seam.log_figures(self.trainer, figures)

    def _move_coef(self, entropy: float | None) -> None:
        """Update the entropy coefficient after a step.

        `entropy` is the mean entropy of the step's tokens; if it is `None`, nothing changes.
        """
        if entropy is not None:
            coef = self.entropy.coef_after(self.trainer.entropy_coef, entropy)
            seam.set_entropy_state(self.trainer, coef, entropy)
