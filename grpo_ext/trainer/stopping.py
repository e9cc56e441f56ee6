"""Stop a run before its last step, or roll it back: at the end of a step, on all ranks together, with a checkpoint.

The cause is a signal, steps without a finite gradient, or an alarm of the health monitor. A rollback continues from a
checkpoint well before the alarm with a lower learning rate. `rollbacks.json` lists the rollbacks, and a checkpoint stores how
many of them were before it, so a run that is interrupted in between also takes the lower rate.
"""

import json
import logging
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.trainer_callback import TrainerCallback

from grpo_ext.common.files import checkpoints, step_of, write_atomically
from grpo_ext.observe.run_log import METRICS, ROLLBACKS
from grpo_ext.recipe.safety_options import steps_back
from grpo_ext.trainer.checkpoint import Checkpoints
from grpo_ext.trainer.nonfinite import FiniteSteps, NonFiniteSteps
from grpo_ext.trainer.signals import Interrupted, StopSignals
from grpo_ext.trainer.state import CheckpointMismatch

logger = logging.getLogger(__name__)


class Stopping(TrainerCallback):
    """Decides at the end of each step whether the run stops; the last callback of the trainer."""

    def __init__(self, trainer: Any, finite: FiniteSteps, checkpoints: Checkpoints, monitor: Any, log: Any):
        self.trainer, self.finite, self.checkpoints = trainer, finite, checkpoints
        self.monitor, self.log = monitor, log
        self.stopped_by: str | None = None  # the alarm that ended the run
        self._signals = StopSignals()
        self._stop: Interrupted | NonFiniteSteps | None = None
        self._rollbacks_done = 0  # number of rollbacks before the current weights
        self._rollback_note: tuple[int, dict[str, Any]] | None = None

    def train(self, train: Callable[[str | None], Any], resume_from_checkpoint: str | bool | None) -> Any:
        """Train by `train`, which begins or continues from a checkpoint, with a rollback if an alarm asks for it.

        `Interrupted` if a signal asked the run to stop. `NonFiniteSteps` if more than `max_skipped_steps` steps in a row had no
        finite gradient.
        """
        self._stop = self.stopped_by = None
        self._rollbacks_done = 0
        with self._signals:
            output = train(self.checkpoints.begin(resume_from_checkpoint))
            while self._stop is None and (healthy := self._rollback()):
                output = train(self.checkpoints.begin(healthy))
        self.stopped_by = (self.monitor and self.monitor.stopped_by) or self.stopped_by
        if self._stop is not None:
            raise self._stop
        return output._replace(training_loss=output.metrics["train_loss"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the state of TRL's trainer, and apply the lower learning rate of rollbacks."""
        self.checkpoints.restore_trl()
        if state.global_step:
            self._take_rollbacks()
        if self._rollback_note is not None:
            if state.is_world_process_zero:
                self.log.note(*self._rollback_note)
            self._rollback_note = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Decide whether the run stops after this step."""
        number, most = self._signals.agreed(self.trainer.accelerator), args.max_skipped_steps
        if number:
            self._stop = Interrupted(signal.Signals(number).name)
        elif self.finite.in_a_row > most:
            self._stop = NonFiniteSteps(
                f"{self.finite.in_a_row} steps in a row had no finite gradient (max_skipped_steps: {most}). They did not "
                "change the weights. Look at the steps kept in not_finite-*, lower learning_rate, train in bf16 or fp32."
            )
        if self._stop is not None:
            control.should_save = control.should_training_stop = True

    def _rollback(self) -> str | None:
        """Return the checkpoint to roll back to if an alarm has asked for it; delete the newer ones."""
        alarm = self.monitor.rollback if self.monitor else None
        if alarm is None:
            return None
        self.monitor.rollback = None
        step, most = self.trainer.state.global_step, self.trainer.args.max_rollbacks
        before = step - steps_back(self.trainer.state.logging_steps)
        run = Path(self.trainer.args.output_dir)
        main, healthy = self.trainer.accelerator.is_main_process, self.checkpoints.newest(before)
        if self._rollbacks_done >= most or healthy is None:
            self.checkpoints.save_failure()
            missing = f"there is no checkpoint of step {before} or before"
            why = f"rollback {most} of {most} is done" if healthy else missing
            self.stopped_by = f"{alarm['message']} The run cannot go back: {why}. It ends with a checkpoint."
            return None
        factor, to = self.trainer.args.rollback_factor, step_of(Path(healthy))
        message = f"At step {step}: {alarm['message']} Went back to step {to} with {factor:g} times the learning rate."
        self._rollback_note = (to, {**alarm, "message": message})
        if main:
            logger.warning(message)
            entry = {"rule": alarm["alarm"], "value": alarm["value"], "step": step, "to": to, "factor": factor}
            self._note_rollback(run, entry)
        self.trainer.accelerator.wait_for_everyone()
        return healthy

    def _note_rollback(self, run: Path, entry: dict[str, Any]) -> None:
        """Add a rollback to `rollbacks.json`, keep the metrics of the discarded part, and delete its checkpoints."""
        entries = [*read_rollbacks(run), entry]
        kept = run / f"rolled_back-{len(entries)}"
        kept.mkdir(exist_ok=True)
        if (run / METRICS).exists():
            shutil.copyfile(run / METRICS, kept / METRICS)
        write_atomically(run / ROLLBACKS, json.dumps(entries, indent=1) + "\n")
        for folder in checkpoints(run):
            if step_of(folder) > entry["to"]:
                shutil.rmtree(folder)

    def _take_rollbacks(self) -> None:
        """Lower the learning rate for rollbacks after the loaded checkpoint was saved."""
        entries = self.checkpoints.by_main(lambda: read_rollbacks(Path(self.trainer.args.output_dir)))
        for entry in entries[self._rollbacks_done :]:
            scale_learning_rate(self.trainer.optimizer, self.trainer.lr_scheduler, entry["factor"])
        self._rollbacks_done = max(self._rollbacks_done, len(entries))

    def state_dict(self) -> dict[str, Any]:
        return {"rollbacks": self._rollbacks_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rollbacks_done = state["rollbacks"]


def read_rollbacks(run: Path) -> list[dict[str, Any]]:
    """Return the rollbacks of a run, oldest first.

    `CheckpointMismatch` if they cannot be read, because the learning rate depends on them.
    """
    path = run / ROLLBACKS
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        if not isinstance(found, list) or not all(isinstance(entry["factor"], int | float) for entry in found):
            raise ValueError("it is not a list of factors")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        what = f"{path} is damaged ({error}): it lists the factors by which the learning rate was lowered"
        raise CheckpointMismatch(f"{what}. Repair it, or delete it to continue at the recipe's rate.") from error
    return found


def scale_learning_rate(optimizer: Any, scheduler: Any, factor: float) -> None:
    """Multiply the learning rate of every parameter group, now and for the rest of the schedule."""
    for group in optimizer.param_groups:
        group["lr"] *= factor
        if "initial_lr" in group:
            group["initial_lr"] *= factor
    scheduler = getattr(scheduler, "scheduler", scheduler)
    for name in ("base_lrs", "_last_lr"):
        if hasattr(scheduler, name):
            setattr(scheduler, name, [rate * factor for rate in getattr(scheduler, name)])
