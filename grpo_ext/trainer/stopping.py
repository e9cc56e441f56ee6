"""Stop a run early: at the end of a step, on all ranks together, with a checkpoint.

The cause is a signal, or too many steps in a row without a finite gradient. An alarm of the health
monitor stops a run by itself.
"""

import signal
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from grpo_ext.trainer.checkpoint import Checkpoints
from grpo_ext.trainer.nonfinite import FiniteSteps, NonFiniteSteps
from grpo_ext.trainer.port import Trainer
from grpo_ext.trainer.signals import Interrupted, StopSignals


class Stopping(TrainerCallback):
    """Decides after each step whether the run stops; it must be the trainer's last callback."""

    def __init__(self, trainer: Trainer, finite: FiniteSteps, checkpoints: Checkpoints):
        self.trainer = trainer
        self.finite = finite
        self.checkpoints = checkpoints
        self._signals = StopSignals()
        self._stop: Interrupted | NonFiniteSteps | None = None

    def train(
        self, train: Callable[[str | None], Any], resume_from_checkpoint: str | bool | None
    ) -> Any:
        """Call `train` with the checkpoint to resume from, or `None`.

        Args:
            train: trains from the folder of a checkpoint, or from scratch if it is `None`.
            resume_from_checkpoint: a folder, or `True` for the newest whole checkpoint.

        Raises:
            Interrupted: if a signal stopped the run.
            NonFiniteSteps: if more than `max_skipped_steps` steps in a row had no finite gradient.
        """
        self._stop = None
        with self._signals:
            output = train(self.checkpoints.begin(resume_from_checkpoint))
        if self._stop is not None:
            raise self._stop
        return output._replace(training_loss=output.metrics["train_loss"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore TRL's own state of the trainer."""
        self.checkpoints.restore_trl()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Decide whether the run stops after this step."""
        number = self._signals.agreed(self.trainer.accelerator)
        limit = self.trainer.args.max_skipped_steps
        if number:
            self._stop = Interrupted(signal.Signals(number).name)
        elif self.finite.in_a_row > limit:
            self._stop = NonFiniteSteps(
                f"{self.finite.in_a_row} steps in a row had no finite gradient "
                f"(max_skipped_steps: {limit}). They did not change the weights. Lower "
                "learning_rate, or train in bf16 or fp32."
            )
        if self._stop is not None:
            control.should_save = True
            control.should_training_stop = True
