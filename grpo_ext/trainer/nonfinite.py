"""Steps whose gradient is not finite: skipped, counted, and kept to look at.

An inf or NaN in a log-prob, a loss or a gradient makes the norm of the step's gradient inf or NaN on every rank, because
gradients are summed over ranks. The gradient of such a step is deleted, so the optimizer changes no weight and no moment.
"""

import logging
import math
from pathlib import Path
from typing import Any

import torch

KEPT = 2  # the number of steps that a run keeps as dumps, each as large as the trained weights
logger = logging.getLogger(__name__)


class NonFiniteSteps(RuntimeError):
    """More steps in a row than `max_skipped_steps` had no finite gradient."""


class FiniteSteps:
    """Checks the gradient of each step; the trainer reports each micro-batch and the norm."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.skipped = 0
        self.in_a_row = 0
        self._seen: list[Any] = []  # micro-batches of this step
        self._losses: list[torch.Tensor] = []  # of these micro-batches

    def begin_step(self) -> None:
        """Delete the records of the step before."""
        self._seen, self._losses = [], []

    def after(self, inputs: Any, loss: torch.Tensor) -> None:
        """Note a micro-batch that has run."""
        if self.trainer.model.training:
            self._seen.append(inputs)
            self._losses.append(loss.detach())

    def check(self, model: Any, norm: Any) -> None:
        """Skip a step whose gradient is not finite; `NonFiniteSteps` if DeepSpeed has already taken the step."""
        trainer = self.trainer
        if trainer.accelerator.scaler is not None:  # fp16 skips such steps itself, and starts with some
            return
        if math.isfinite(float(norm)):
            self.in_a_row = 0
            return
        if trainer.is_deepspeed_enabled and not trainer.accelerator.optimizer_step_was_skipped:
            # its engine has already taken the step; recent versions skip such steps
            raise NonFiniteSteps(
                f"Step {trainer.state.global_step + 1} had no finite gradient, and DeepSpeed has taken it: the weights are "
                "invalid. Resume from the last checkpoint with a lower learning_rate and DeepSpeed 0.19 or later, which skips "
                "such steps."
            )
        self.skipped += 1
        self.in_a_row += 1
        self._report(float(norm))
        model.zero_grad()

    def _report(self, norm: float) -> None:
        step, kept = self.trainer.state.global_step + 1, ""
        if self.skipped <= KEPT:
            folder = Path(self.trainer.args.output_dir) / f"not_finite-{step}"
            kept = f" It is kept in {folder}." if self._keep(folder) else ""
        losses = ", ".join(f"{float(loss):.4g}" for loss in self._losses)
        if self.trainer.accelerator.is_main_process:
            logger.warning(f"Step {step} is skipped: its gradient is {norm} (losses: {losses}).{kept}")

    def _keep(self, folder: Path) -> bool:
        """Write this rank's part of the step: its micro-batches, and the weights if one rank has all of them."""
        trainer = self.trainer
        whole = trainer.accelerator.is_main_process and not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)
        named = trainer.accelerator.unwrap_model(trainer.model).named_parameters()
        dump = {
            "step": trainer.state.global_step + 1,
            "inputs": self._seen,
            "accumulation": trainer.current_gradient_accumulation_steps,
            "losses": [float(loss) for loss in self._losses],
            "weights": {name: p.detach().cpu() for name, p in named if p.requires_grad} if whole else None,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(dump, folder / f"rank_{trainer.accelerator.process_index}.pt")
        except (OSError, RuntimeError) as error:
            logger.warning(f"{folder} could not be written ({error}).")
            return False
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped, self.in_a_row = state["skipped"], state["in_a_row"]
