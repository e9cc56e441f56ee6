"""The interface that the trainer's parts use: TRL's class and the additions of `GRPOExtTrainer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from grpo_ext.samplers.port import SampledTrainer

if TYPE_CHECKING:
    from grpo_ext.evaluation.completions import Decoding
    from grpo_ext.trainer.assembly import Parts


class Trainer(SampledTrainer, Protocol):
    """Protocol for the attributes and methods of `GRPOExtTrainer` that its parts use."""

    as_trl: bool  # whether TRL generates and computes the loss (`loss_normalization: micro_batch`)
    eval_decoding: Decoding | None  # `None` if TRL evaluates

    @property
    def parts(self) -> Parts: ...

    def log_evaluation(self, metrics: dict[str, float]) -> None: ...

    def save_checkpoint(self) -> None: ...
