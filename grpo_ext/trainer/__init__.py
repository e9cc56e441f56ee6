"""The trainer: the one room that touches TRL's private names."""

from grpo_ext.trainer.trainer import GRPOExtTrainer

__all__ = ["GRPOExtTrainer"]
