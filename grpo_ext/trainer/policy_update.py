"""Compute the loss of micro-batches, and log the metrics of each step."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from grpo_ext.objective.policy import Stat
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams import trl as seam
from grpo_ext.step.cut import step_counts
from grpo_ext.step.loss import EntropyControl, LossSettings, old_logps, step_loss
from grpo_ext.step.metrics import StepStats, age_stats, sampler_stats
from grpo_ext.step.records import LossOutput, MicroBatch, Ranks, Scored
from grpo_ext.trainer.phases import Phases
from grpo_ext.trainer.port import Trainer


@dataclass
class PolicyUpdate:
    """Scores micro-batches and computes their losses."""

    trainer: Trainer
    scorer: Scorer
    settings: LossSettings
    entropy: EntropyControl
    ranks: Ranks
    phases: Phases
    settled: Callable[[dict[str, float]], None]  # takes the metrics of each optimizer step
    _stats: StepStats = field(default_factory=StepStats)

    def loss(self, model: nn.Module, batch: MicroBatch, accumulation: int) -> Tensor:
        """Return a micro-batch's share of the step's loss, with gradient.

        The last micro-batch of a step logs the metrics of the step.

        Args:
            model: the wrapped model that is trained.
            batch: the micro-batch.
            accumulation: the number of micro-batches in the step, as the trainer counts them.
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

        A callback may have changed them, as in TRL.
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
        """Return a batch of TRL's evaluation as a step with one micro-batch."""
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
            self.settled(figures)
        if self.trainer.model.training and self.entropy.enabled:
            self._move_coef(figures.get("entropy/high", figures.get("entropy")))
            figures["entropy_coef"] = self.trainer.entropy_coef
        seam.log_figures(self.trainer, figures)

    def _move_coef(self, entropy: float | None) -> None:
        """Update the bonus coefficient after a step; a step without tokens changes nothing."""
        if entropy is not None:
            coef = self.entropy.coef_after(self.trainer.entropy_coef, entropy)
            seam.set_entropy_state(self.trainer, coef, entropy)
