"""Whether vLLM has the trainer's weights: the log-probs of what it just sampled are those that the trainer gives them.

A tensor that did not arrive (a tied output head that the engine keeps a copy of) leaves greedy text nearly as it was, and is
seen in log-probs at once.
"""

from __future__ import annotations

from typing import Any

import torch

from grpo_ext.trainer.engine import engine_option
from grpo_ext.trainer.rows import overridden
from grpo_ext.vllm import EngineFailure

ROWS = 4  # completions that are scored again


class SyncCheck:
    """Mixin just before `GRPOTrainer`: reads `vllm_sync_check_steps` and `vllm_sync_check_limit`.

    Logs `sampling/sync_difference`, the mean absolute difference.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self._checked_sync: int | None = None
        self._sync_limit: float | None = None
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self._sync_check_is_due(output):
            self._checked_sync = self.vllm_generation.syncs
            self._check_sync(output)
        return output

    def _sync_check_is_due(self, output: dict[str, Any]) -> bool:
        every = engine_option(self.args, "vllm_sync_check_steps")
        if not (self.use_vllm and every) or "sampling_per_token_logps" not in output or "pixel_values" in output:
            return False
        if self.logprob_policy != "sampling" and (
            self.sampling.truncated or self.temperature != self.sampling.temperature
        ):
            return False  # scored under another policy than sampled
        return self._checked_sync is None or self.vllm_generation.syncs - self._checked_sync >= every

    def _check_sync(self, output: dict[str, Any]) -> None:
        if self._sync_limit is None:
            given = engine_option(self.args, "vllm_sync_check_limit")
            self._sync_limit = given or (1e-3 if self.vllm_generation.dtype() == "float32" else 0.2)
        found = sync_difference(self, output)
        total, tokens = self.accelerator.reduce(torch.stack(found), reduction="sum").tolist()
        difference = total / max(tokens, 1)
        self._metrics["train" if self.model.training else "eval"]["sampling/sync_difference"].append(difference)
        if not difference <= self._sync_limit:
            raise EngineFailure(
                f"vLLM's log-probs are {difference:.3g} from the trainer's on average, and at most {self._sync_limit:g} was "
                "expected (vllm_sync_check_limit): the engine does not compute with the weights that it was given."
            )


@torch.no_grad()
def sync_difference(trainer: Any, output: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed absolute difference of log-probs of a few completions of this rank, and the number of their tokens.

    Where sampling is truncated, without the tenth of the tokens that differ most.
    """
    prompt, completion = output["prompt_ids"][:ROWS], output["completion_ids"][:ROWS]
    mask = output["completion_mask"][:ROWS]
    if "tool_mask" in output:
        mask = mask * output["tool_mask"][:ROWS]
    ids = torch.cat([prompt, completion], dim=1)  # (b, P + T)
    attended = torch.cat([output["prompt_mask"][:ROWS], output["completion_mask"][:ROWS]], dim=1)
    training = trainer.model.training
    trainer.model.eval()  # dropout is none of the engine's
    try:
        with overridden(trainer, _kept_rows=None, _scored=trainer._scored):
            logps, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, attended, completion.size(1), batch_size=len(ids)
            )
    finally:
        trainer.model.train(training)
    sampled = output["sampling_per_token_logps"][:ROWS]
    difference = (logps - sampled)[mask.bool() & ~sampled.isnan()].abs().float()
    if trainer.sampling.truncated:  # a token on the edge of the kept set may fall on either side of it by rounding
        difference = difference.sort().values[: 9 * len(difference) // 10]
    return difference.sum(), difference.new_tensor(difference.numel())
