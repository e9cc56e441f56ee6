"""The trainer: a subclass of TRL's with few overrides, and the parts that they delegate to."""

from grpo_ext.seams.contract import check_contract

try:
    from grpo_ext.trainer.trainer import GRPOExtTrainer
except ImportError:
    check_contract()  # lists what TRL has changed if it no longer has a name that we import
    raise

__all__ = ["GRPOExtTrainer"]
