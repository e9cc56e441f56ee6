"""Skip and count optimizer steps with a non-finite gradient, and warn about them.

An inf or NaN in a log-prob, a loss or a gradient makes the norm of the step's gradient inf or NaN
on every rank, because gradients are summed over ranks. The gradient of such a step is deleted, so
the optimizer changes neither weights nor moments.
"""

import logging
import math
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from grpo_ext.trainer.port import Trainer

logger = logging.getLogger(__name__)


class NonFiniteSteps(RuntimeError):
    """Too many steps in a row had a non-finite gradient, or DeepSpeed has taken such a step."""


class FiniteSteps:
    """Checks the gradient of each step, from the losses and the norm that the trainer reports."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.skipped = 0
        self.in_a_row = 0
        self._losses: list[torch.Tensor] = []  # the losses of this step's micro-batches

    def after(self, loss: torch.Tensor) -> None:
        """Record the loss of a micro-batch that has run; ignored during evaluation."""
        if self.trainer.model.training:
            self._losses.append(loss.detach())

    def check(self, model: torch.nn.Module, norm: torch.Tensor | float) -> None:
        """Skip a step with a non-finite gradient; raise `NonFiniteSteps` if DeepSpeed took it.

        With fp16 loss scaling nothing is checked.
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
            # its engine has already taken the step; recent versions skip such steps
            raise NonFiniteSteps(
                f"Step {trainer.state.global_step + 1} had no finite gradient, and DeepSpeed has "
                "taken it: the weights are invalid. Resume from the last checkpoint with a lower "
                "learning_rate and DeepSpeed 0.19 or later, which skips such steps."
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
            details += f"; not finite in {', '.join(names[:3])}{and_others}"
        step = self.trainer.state.global_step + 1
        logger.warning(f"Skipping step {step}: the norm of its gradient is {norm} ({details}).")

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
