"""The trainer: a subclass of TRL's with few overrides, and the parts that they delegate to."""

from grpo_ext.trainer.trainer import GRPOExtTrainer

__all__ = ["GRPOExtTrainer"]
