"""Generation without waste: transformers' `generate` as TRL calls it, with our decoding loop inside."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from grpo_ext.rollout.generate import base_model, fast_generation
from grpo_ext.rollout.support import NotSupported, check_config, check_model


class FastRollout:
    """Mixin before `GRPOTrainer`: reads each distinct prompt once and decodes no row on that has ended.

    Reads the option `fast_generate`.
    """

    def _generate_single_turn(self, *args, **kwargs):
        fast = getattr(self.args, "fast_generate", True)
        model = self.accelerator.unwrap_model(self.model_wrapped)
        with fast_generation(model) if fast and not self.use_vllm else nullcontext():
            return super()._generate_single_turn(*args, **kwargs)


def how_it_generates(trainer: Any) -> str:
    """One line on how completions are made."""
    if trainer.use_vllm:
        return f"vLLM ({trainer.vllm_mode})"
    if trainer.use_transformers_continuous_batching:
        return "transformers' continuous batching"
    if not getattr(trainer.args, "fast_generate", True):
        return "transformers' generate (fast_generate: false)"
    try:
        check_model(base_model(trainer.accelerator.unwrap_model(trainer.model_wrapped)))
        check_config(trainer.generation_config)
    except NotSupported as reason:
        return f"transformers' generate, since {reason}"
    return "each prompt read once, rows that have ended leave the batch (fast_generate)"
