"""Steps whose gradient is not finite: skipped, counted, and kept so that they can be gone through again.

A log-prob, a loss or a gradient that is inf or NaN makes the norm of the step's gradient so on every rank, since gradients are
summed over ranks. Such a step leaves no gradient to the optimizer, which then changes nothing: no weight, no moment.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_ext.batching.rows import moved

KEPT = 2  # steps of a run that are kept as dumps; each is as large as the weights that are trained
logger = logging.getLogger(__name__)


class NonFiniteSteps(RuntimeError):
    """More steps in a row than `max_skipped_steps` had no finite gradient."""


@dataclass(frozen=True)
class Replay:
    """What a step gave when it was gone through again.

    Attributes:
        losses: of its micro-batches on this rank.
        grad_norm: of their gradient.
        parameters: names of those whose gradient is not finite.
    """

    losses: list[float]
    grad_norm: float
    parameters: list[str]


class FiniteSteps:
    """Mixin before `GRPOTrainer`, outside of all that changes the loss. Reads the option `max_skipped_steps`."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.skipped_steps = 0
        self.skipped_in_a_row = 0
        self._seen: list[dict[str, Any]] = []  # this step's micro-batches, and their losses
        self._losses: list[torch.Tensor] = []
        self._rng: tuple[torch.Tensor, ...] = ()
        super().__init__(*args, **kwargs)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        self._seen, self._losses = [], []
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _compute_loss(self, model, inputs):
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        if not self._seen:
            self._rng = random_state()
        loss = super()._compute_loss(model, inputs)
        self._seen.append(dict(inputs))  # with old log-probs that are known only now
        self._losses.append(loss.detach())
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        if self.accelerator.scaler is not None:  # fp16 skips such steps itself, and starts with some
            return norm
        if math.isfinite(float(norm)):
            self.skipped_in_a_row = 0
            return norm
        if self.is_deepspeed_enabled and not self.accelerator.optimizer_step_was_skipped:
            # its engine has taken the step by now; recent ones leave such a step out themselves
            raise NonFiniteSteps(
                f"Step {self.state.global_step + 1} had no finite gradient, and DeepSpeed has taken it: the weights are "
                "spoilt. Go on from the last checkpoint with a lower learning_rate and DeepSpeed 0.19 or later, which leaves "
                "such steps out."
            )
        self.skipped_steps += 1
        self.skipped_in_a_row += 1
        self._tell(float(norm))
        model.zero_grad()
        return norm

    def _tell(self, norm: float) -> None:
        step, kept = self.state.global_step + 1, ""
        if self.skipped_steps <= KEPT:
            folder = Path(self.args.output_dir) / f"not_finite-{step}"
            kept = f" It is kept in {folder}." if self._keep(folder) else ""
        losses = ", ".join(f"{float(loss):.4g}" for loss in self._losses)
        if self.accelerator.is_main_process:
            logger.warning(
                f"Step {step} is skipped: its gradient is {norm} (losses of its micro-batches: {losses}).{kept}"
            )

    def _keep(self, folder: Path) -> bool:
        """Write this rank's part of the step: its micro-batches, and the weights where they lie on one rank whole."""
        whole = self.accelerator.is_main_process and not (self.is_fsdp_enabled or self.is_deepspeed_enabled)
        named = self.accelerator.unwrap_model(self.model).named_parameters()
        dump = {
            "step": self.state.global_step + 1,
            "rng": self._rng,
            "inputs": [moved(part, "cpu") for part in self._seen],
            "accumulation": self.current_gradient_accumulation_steps,
            "losses": [float(loss) for loss in self._losses],
            "weights": {name: p.detach().cpu() for name, p in named if p.requires_grad} if whole else None,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(dump, folder / f"rank_{self.accelerator.process_index}.pt")
        except (OSError, RuntimeError) as error:
            logger.warning(f"{folder} could not be written ({error}).")
            return False
        return True

    def replay(self, folder: str | Path) -> Replay:
        """Go through a kept step again, on as many ranks as then: forward and backward, no optimizer step.

        Args:
            folder: `not_finite-STEP` in the run's `output_dir`. The trainer is made as it was for the run; trained weights are
                set to those of the step.
        """
        folder, rank = Path(folder), self.accelerator.process_index
        dump = torch.load(folder / f"rank_{rank}.pt", map_location="cpu", weights_only=False)
        weights = dump["weights"] if rank == 0 else torch.load(folder / "rank_0.pt", weights_only=False)["weights"]
        if weights is not None:
            self.accelerator.unwrap_model(self.model).load_state_dict(weights, strict=False)
        model = self._wrap_model(self.model_wrapped)
        model = self.accelerator.prepare(model) if model is self.model else model
        model.train()
        model.zero_grad()
        self.current_gradient_accumulation_steps = dump["accumulation"]
        set_random_state(dump["rng"])
        losses = []
        for inputs in dump["inputs"]:
            loss = self.compute_loss(model, moved(inputs, self.accelerator.device))
            self.accelerator.backward(loss)
            losses.append(float(loss.detach()))
        gradients = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        norm = float(torch.nn.utils.get_total_norm(list(gradients.values())))
        odd = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
        model.zero_grad()
        return Replay(losses, norm, odd)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.skipped_steps:
            logs["skipped_steps"] = self.skipped_steps
        super().log(logs, start_time)

    def run_state(self) -> dict[str, Any]:
        return {**super().run_state(), "skipped": (self.skipped_steps, self.skipped_in_a_row)}

    def load_run_state(self, state: dict[str, Any]) -> None:
        super().load_run_state(state)
        self.skipped_steps, self.skipped_in_a_row = state.get("skipped", (0, 0))


def random_state() -> tuple[torch.Tensor, ...]:
    """Torch's state of random numbers on the CPU and, where there is one, on the GPU in use."""
    states = [torch.get_rng_state()]
    return (*states, torch.cuda.get_rng_state()) if torch.cuda.is_available() else tuple(states)


def set_random_state(states: tuple[torch.Tensor, ...]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[1])
