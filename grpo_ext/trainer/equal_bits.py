"""Checks for `deterministic: true`, before a run and on the log-probs of each step."""

from collections.abc import Mapping

from grpo_ext.determinism.attention import MOST_KEYS
from grpo_ext.samplers.base import Sampler
from grpo_ext.scoring.layout import attention_of, has_rotary_positions
from grpo_ext.trainer.port import Trainer
from grpo_ext.vllm import EngineFailure


def check_deterministic(trainer: Trainer, sampler: Sampler | None, by_trl: bool) -> None:
    """With `deterministic: true`, check that sampler and trainer can compute equal log-probs.

    Args:
        trainer: the trainer, with its model; without `deterministic: true`, nothing is checked.
        sampler: the sampler that the user passed, or `None`.
        by_trl: whether TRL generates because of a multimodal processor or because of tools.

    Raises:
        ValueError: if the user passed a sampler or a `rollout_func`, if `by_trl` is true, if
            `max_completion_length` is not below `MOST_KEYS`, if the model's attention is not
            `sdpa`, or if the model's positions count padding.
    """
    if not trainer.args.deterministic:
        return
    if sampler is not None or trainer.rollout_func is not None:
        raise ValueError(
            "`deterministic: true` does not work with the arguments `sampler` and `rollout_func`, "
            "which may compute log-probs differently from the trainer. Remove them, or set "
            "`deterministic: false`."
        )
    if by_trl:
        raise ValueError(
            "`deterministic: true` does not work with a multimodal processor, or with tools that "
            "TRL calls, because TRL then generates the completions. Set `deterministic: false`."
        )
    if trainer.args.max_completion_length >= MOST_KEYS:
        raise ValueError(
            f"`deterministic: true` works with at most {MOST_KEYS} tokens of prompt and "
            "completion together. Lower max_completion_length, or set `deterministic: false`."
        )
    model = trainer.accelerator.unwrap_model(trainer.model)
    attention = attention_of(model)
    if attention != "sdpa":
        raise ValueError(
            "`deterministic: true` works only with `sdpa` attention, but this model uses "
            f"{attention}. "
            "Load it with `attn_implementation: sdpa`, or set `deterministic: false`."
        )
    if not has_rotary_positions(model):
        raise ValueError(
            "`deterministic: true` needs a model with rotary positions. The positions of this "
            "model count padding, and the trainer pads rows differently from the sampler. Set "
            "`deterministic: false`."
        )


def refuse_unequal(figures: Mapping[str, float]) -> None:
    """Raise `EngineFailure` on all ranks if sampler and trainer computed different log-probs.

    Call this only in a run with `deterministic: true`. A step in which no log-probs were compared
    passes.

    Args:
        figures: the metrics of the step, merged over ranks.
    """
    difference = figures.get("sampling/logp_difference/max", 0.0)
    if difference != 0:
        raise EngineFailure(
            f"Log-probs of sampler and trainer differ by up to {difference:.2g} in this step, but "
            "`deterministic: true` requires them to be equal. On this CPU, some operation of this "
            "model gives results that depend on the other tokens in the batch. Set "
            "`deterministic: false`."
        )
