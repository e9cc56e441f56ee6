"""Stop a run early: at the end of a step, on all ranks together, with a checkpoint.

The cause is a signal, or too many steps in a row without a finite gradient. The health monitor
stops runs in its own way, without this module.

A signal is recorded on arrival, and all ranks act on it after the step (`StopSignals`).

An inf or NaN in a loss or a gradient makes the gradient norm of the step inf or NaN on every rank,
because gradients are summed over ranks. `FiniteSteps` counts such a step and deletes its gradient,
so that the optimizer changes neither weights nor moments.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from grpo_ext.run.ranks import EXIT_INTERRUPTED, report_ready
from grpo_ext.trainer.checkpoint import Checkpoints
from grpo_ext.trainer.port import Trainer

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Interrupted(SystemExit):
    """Raised after a signal has stopped the run at the end of a step, with a checkpoint.

    It is a `SystemExit`, so a script that does not catch it ends with exit code 75.
    """

    code = EXIT_INTERRUPTED


class StopSignals:
    """Context manager that records SIGTERM, SIGUSR1 and Ctrl-C in `seen` instead of acting on them.

    A second Ctrl-C ends the process at once. Handlers that the program itself has installed are not
    replaced. Outside the main thread, no signal is handled. Once the handlers are installed, the
    `grpo-ext` command that started the process, if there is one, is notified.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self.seen = 0
        if threading.current_thread() is threading.main_thread():
            usual = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)
            self._before = {
                s: signal.signal(s, self._note) for s in SIGNALS if signal.getsignal(s) in usual
            }
            report_ready()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.seen == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        self.seen = number
        again = " Press Ctrl-C again to stop at once." if number == signal.SIGINT else ""
        logger.warning(
            "%s: the run will save a checkpoint and stop at the end of this step.%s",
            signal.Signals(number).name,
            again,
        )

    def agreed(self, accelerator: Accelerator) -> int:
        """Return the highest of the ranks' latest signal numbers, or 0 if there was no signal.

        All ranks must call this method together, and all get the same result.
        """
        return int(accelerator.gather(torch.tensor([self.seen], device=accelerator.device)).max())


class NonFiniteSteps(RuntimeError):
    """Raised if DeepSpeed applied a non-finite gradient, or too many steps in a row had one."""


class FiniteSteps:
    """Checks the gradient norm of each step; skips and counts steps with a non-finite norm."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.skipped = 0
        self.in_a_row = 0
        self._losses: list[torch.Tensor] = []  # the losses of this step's micro-batches

    def after(self, loss: torch.Tensor) -> None:
        """Record the loss of a micro-batch that has run; do nothing during evaluation."""
        if self.trainer.model.training:
            self._losses.append(loss.detach())

    def check(self, model: torch.nn.Module, norm: torch.Tensor | float) -> None:
        """Skip a step whose gradient norm is not finite, by clearing the gradients.

        The step is counted, and a warning is logged. With fp16 loss scaling nothing is checked,
        because the scaler skips such steps itself.

        Args:
            model: the wrapped model that is trained.
            norm: the gradient norm of the step.

        Raises:
            NonFiniteSteps: if DeepSpeed has already taken the step.
        """
        trainer = self.trainer
        losses = self._losses
        self._losses = []
        if trainer.accelerator.scaler is not None:
            return  # the fp16 scaler skips such steps itself, often including the first few
        if math.isfinite(float(norm)):
            self.in_a_row = 0
            return
        if trainer.is_deepspeed_enabled and not trainer.accelerator.optimizer_step_was_skipped:
            # DeepSpeed's engine has already taken the step; recent versions skip such steps
            raise NonFiniteSteps(
                f"Step {trainer.state.global_step + 1} had no finite gradient, but DeepSpeed has "
                "taken the step, so the weights are invalid. Resume from the last checkpoint with "
                "a lower learning_rate and with DeepSpeed 0.19 or later, which skips such steps."
            )
        self.skipped += 1
        self.in_a_row += 1
        self._report(model, float(norm), [float(loss) for loss in losses])
        model.zero_grad()

    def _report(self, model: torch.nn.Module, norm: float, losses: list[float]) -> None:
        """Warn about the step, on the main rank and on ranks with a non-finite loss."""
        accelerator = self.trainer.accelerator
        if not accelerator.is_main_process and all(map(math.isfinite, losses)):
            return
        loss_list = ", ".join(f"{loss:.4g}" for loss in losses)
        details = f"losses of its micro-batches on rank {accelerator.process_index}: {loss_list}"
        # clipping by a NaN norm makes all gradients NaN
        names = [] if math.isnan(norm) else not_finite(accelerator.unwrap_model(model))
        if names:
            and_others = " and others" if len(names) > 3 else ""
            details += f"; the gradient is not finite in {', '.join(names[:3])}{and_others}"
        step = self.trainer.state.global_step + 1
        logger.warning(f"Skipping step {step}: its gradient norm is {norm} ({details}).")

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped = state["skipped"]
        self.in_a_row = state["in_a_row"]


def not_finite(model: torch.nn.Module) -> list[str]:
    """Return the names of the parameters whose gradient is not finite on this rank."""
    names = []
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            gradient = gradient.to_local()
        if gradient is not None and not gradient.isfinite().all():
            names.append(name)
    return names


class Stopping(TrainerCallback):
    """Callback that decides after each step whether the run stops.

    It must be the trainer's last callback, so that no later callback can undo its decision.
    """

    def __init__(self, trainer: Trainer, finite: FiniteSteps, checkpoints: Checkpoints):
        self.trainer = trainer
        self.finite = finite
        self.checkpoints = checkpoints
        self._signals = StopSignals()
        self._stop: Interrupted | NonFiniteSteps | None = None

    def train(
        self, train: Callable[[str | None], Any], resume_from_checkpoint: str | bool | None
    ) -> Any:
        """Restore the checkpoint to resume from, and call `train` while signals are handled.

        Args:
            train: a function that is called with the folder of a checkpoint, or with `None`, and
                trains from this checkpoint or from scratch.
            resume_from_checkpoint: the folder of a checkpoint; `True` to use the newest complete
                checkpoint in `output_dir`, or to start from scratch if there is none; `None` or
                `False` to start from scratch.

        Returns:
            The output of `train`, with `training_loss` replaced by the metric `train_loss`.

        Raises:
            CheckpointMismatch: if the run cannot resume exactly from the checkpoint.
            Interrupted: if a signal stopped the run.
            NonFiniteSteps: if more than `max_skipped_steps` steps in a row had no finite gradient,
                or if DeepSpeed has taken such a step.
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
        """Restore TRL's own state, if the run resumes from a checkpoint."""
        self.checkpoints.restore_trl()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Decide whether the run stops after this step; if it does, request a checkpoint."""
        number = self._signals.agreed(self.trainer.accelerator)
        limit = self.trainer.args.max_skipped_steps
        if number:
            self._stop = Interrupted(signal.Signals(number).name)
        elif self.finite.in_a_row > limit:
            self._stop = NonFiniteSteps(
                "Too many steps in a row had no finite gradient: "
                f"{self.finite.in_a_row} (max_skipped_steps: {limit}). They were skipped, so they "
                "have not changed the weights. Lower learning_rate; if the model is loaded in "
                "float16, set `dtype: bfloat16`."
            )
        if self._stop is not None:
            control.should_save = True
            control.should_training_stop = True
