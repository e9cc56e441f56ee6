"""Detect runs that learn nothing: no advantages, no gradients, unchanged weights, or too much KL.

The whole run is watched, from its first step to its last. Whatever its other metrics say, a run
learned nothing if it never had an advantage (unless its loss needs none), never had a gradient,
did not change its weights by more than rounding, or if the KL drowned out the rewards in nearly all
steps. `Learning.verdict` then holds an explanation from `trainer.verdict`.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from grpo_ext.common.pages import DOES_NOT_LEARN, NOTHING_WAS_LEARNED
from grpo_ext.objective.advantage import equal_in_group
from grpo_ext.observe.log_files import LEARNED_NOTHING
from grpo_ext.step.groups import GroupShape
from grpo_ext.step.loss import POLICY_SHARE
from grpo_ext.step.records import Scored
from grpo_ext.trainer.judging import outcomes_of_groups
from grpo_ext.trainer.port import Trainer
from grpo_ext.trainer.start_checks import check_start, steps_in_backward, used_parameters
from grpo_ext.trainer.verdict import LEAST_SHARE, Progress, remarks_of, why_nothing_was_learned
from grpo_ext.trainer.weight_sample import WeightSample, checksum, local


@dataclass(eq=False)
class Learning(TrainerCallback):
    """Callback that watches all steps of a run, and says at the end if nothing was learned.

    At the start, it checks that the run can learn. Other parts of the trainer report to it by
    calling `generated`, `judged`, `settled` and `played`.
    """

    trainer: Trainer
    progress: Progress = field(default_factory=Progress)
    # why the run learned nothing; `None` if it learned, or has not ended
    verdict: str | None = None
    # sentences for the end of the run, excluding the verdict
    remarks: list[str] = field(default_factory=list)
    # a checksum of each trained tensor, by name; used until one has changed
    _weights: dict[str, Tensor] = field(default_factory=dict)
    # a sample of the weights when training began or resumed
    _sample: WeightSample | None = None

    # ---- called by other parts of the trainer

    def generated(self, table: Scored) -> None:
        """Add this rank's completions of a training generation to the counts in `progress`.

        The counts are `completions` (all of them), `with_signal` (those in groups with signal) and
        `with_advantage` (of these, those with a nonzero advantage and a token in the loss).
        """
        signal = table.signal > 0  # (B,)
        in_loss = table.loss_mask.any(dim=1)  # (B,)
        has_advantage = (table.row_advantages != 0).any(dim=1)  # (B,)
        self.progress.completions += len(table)
        self.progress.with_signal += int(signal.sum())
        self.progress.with_advantage += int((signal & in_loss & has_advantage).sum())

    def judged(
        self, rewards: Tensor, signal: Tensor, left_out: Tensor, rows: slice, shape: GroupShape
    ) -> None:
        """Add this rank's judged completions to the counts in `progress`.

        The counts are `judged` (all completions, including those that are about to be left out),
        `unscored` (those without a score), `varied` (those in groups whose rewards differ) and
        `filtered` (those with signal that `group_filter` leaves out).

        Args:
            rewards: (B of all ranks, R), the rewards; NaN where a reward did not score.
            signal: (b,), for this rank's completions; 0 where no completion of the group has an
                advantage.
            left_out: a bool mask (B of all ranks,) of the completions whose group `group_filter`
                leaves out.
            rows: the slice of this rank's completions among those of all ranks.
            shape: the groups of all ranks.
        """
        columns = shape.spread(rewards).unbind(1)
        equal = torch.stack([equal_in_group(column, shape.largest) for column in columns])
        varied = ~shape.gather(equal.all(dim=0))  # (B of all ranks,)
        self.progress.judged += len(signal)
        self.progress.unscored += int(rewards[rows].isnan().all(dim=1).sum())
        self.progress.varied += int(varied[rows].sum())
        self.progress.filtered += int((left_out[rows] & (signal > 0)).sum())

    def settled(self, figures: dict[str, float]) -> None:
        """Count an optimizer step with a KL term, and note whether the KL drowned out the rewards.

        A step without advantages is not counted. `figures` are the metrics of the step's loss,
        which are the same on all ranks.
        """
        share = figures.get(POLICY_SHARE, 0.0)
        if share > 0:
            self.progress.kl_steps += 1
            self.progress.kl_alone += share < LEAST_SHARE

    def played(self, failures: list[int]) -> None:
        """Count in `progress` a training generation's episodes and how many of them failed.

        `failures` holds the number of environment failures in each episode.
        """
        self.progress.episodes += len(failures)
        self.progress.failed_episodes += sum(count > 0 for count in failures)

    # ---- events of the run

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check that the run can learn, and begin to watch its weights.

        A run that starts at step 0 starts with new counts. A run that has already finished is not
        checked.

        Raises:
            CannotLearn: if the run would train no weight, or its metric for the best model does
                not fit the run (see `check_metric`).
        """
        if state.global_step == 0:
            self.progress = Progress()
        self.verdict = None
        self.remarks = []
        if state.global_step < state.max_steps:
            check_start(self.trainer, kwargs["optimizer"])
            self._weights = {} if self.progress.moved else self._checksums()
            self._sample = WeightSample(self._used()) if self.watches_weights else None

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record whether the step has a non-zero gradient, unless an earlier step had one."""
        if not self.progress.gradient:
            gradients = [parameter.grad for parameter in self._trained().values()]
            self.progress.gradient = any(
                bool(local(gradient).any()) for gradient in gradients if gradient is not None
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the step, and record whether it changed a weight, unless an earlier step did.

        After the last step, set the verdict; if nothing was learned, add an alarm to the run log.
        """
        self.progress.steps += 1
        if not self.progress.moved:
            now = self._checksums()
            # a callback may have frozen or unfrozen weights
            watched = now.keys() & self._weights.keys()
            self.progress.moved = any(bool(self._weights[name] != now[name]) for name in watched)
            self._weights = now
        if state.global_step >= state.max_steps:
            self.conclude()
            if self.verdict is not None and state.is_world_process_zero:
                log = self.trainer.parts.log
                log.note(state.global_step, {"alarm": LEARNED_NOTHING, "message": self.verdict})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the verdict and the remarks, even if the run stopped early or had already ended."""
        self.conclude()

    def conclude(self) -> None:
        """Set the verdict and the remarks from the progress of all ranks.

        All ranks must call this method.
        """
        self._measure()
        progress = sum(gather_object([self.progress]), Progress())
        trainer = self.trainer
        judges = outcomes_of_groups(trainer)
        self.verdict = why_nothing_was_learned(
            progress,
            self.watches_weights,
            self.needs_advantage,
            f"the reward {trainer.reward_func_names[judges[0]]!r}",
        )
        if self.verdict is not None:
            self.verdict += f" See {DOES_NOT_LEARN}#{NOTHING_WAS_LEARNED}."
        judge = trainer.parts.judge
        self.remarks = remarks_of(judge.failed, judge.asked, progress, self.verdict)

    def _measure(self) -> None:
        """Record how far the weights have moved since the run started or resumed.

        If a larger value was recorded before the run resumed, that value is kept.
        """
        if self._sample is None:
            return
        shift = self._sample.shift(self._used())
        shifts = [x for x in (shift, self.progress.shift) if x is not None]
        self.progress.shift = max(shifts, default=None)

    # ---- the trained parameters

    @property
    def watches_weights(self) -> bool:
        """Whether this run's gradients and weights can be observed.

        They cannot under DeepSpeed, which keeps both elsewhere, or with a layerwise optimizer,
        which keeps no gradients.
        """
        return not (self.trainer.is_deepspeed_enabled or steps_in_backward(self.trainer.args))

    @property
    def needs_advantage(self) -> bool:
        """Whether the loss needs advantages to have a gradient, apart from KL and entropy terms.

        With `loss_normalization: micro_batch`, it always does. Otherwise it does unless
        `positive_nll_coef` is set or a custom loss declares that it needs none.
        """
        trainer = self.trainer
        loss = trainer.parts.update.settings
        return trainer.as_trl or (loss.loss.needs_advantage and not loss.positive_nll_coef)

    def _trained(self) -> dict[str, Tensor]:
        """Return the tensors that the policy uses and training may change, by name."""
        return {name: p for name, p in self._used().items() if p.requires_grad}

    def _used(self) -> dict[str, nn.Parameter]:
        """Return the tensors that the policy uses, by name; empty if they cannot be observed."""
        if not self.watches_weights:
            return {}
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        return dict(used_parameters(model))

    def _checksums(self) -> dict[str, Tensor]:
        """Return a checksum of the bits of each trained tensor, by name."""
        return {name: checksum(local(p.detach())) for name, p in self._trained().items()}

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        self._measure()
        return vars(self.progress).copy()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.progress = Progress(**state)
