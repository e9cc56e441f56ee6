"""The trainer, a subclass of `GRPOTrainer` with few overrides, and its parts."""

from grpo_ext.seams.contract import check_contract

try:
    from grpo_ext.trainer.trainer import GRPOExtTrainer
except ImportError:
    check_contract()  # if TRL is the cause, raises an error that lists what has changed
    raise

__all__ = ["GRPOExtTrainer"]
