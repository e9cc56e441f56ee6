"""Which completions count in the loss, and how much better than their group they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from grpo_ext.objective.advantage import group_advantages, no_signal
from grpo_ext.trainer.logprobs import loss_mask
from grpo_ext.trainer.scoring import ChunkedScoring


class CountedRows(ChunkedScoring):
    """Mixin before `GRPOTrainer`: each completion says whether it counts and whether its group carries signal.

    Adds to what TRL makes of a generation: `counted` (B,), 0 for completions masked for being truncated, and `signal` (B,), 0
    where all rewards of the group are equal. Reads the options `loss_normalization` and `std_estimator`.
    """

    loss_normalization: str
    std_estimator: str

    def __init__(self, *args: Any, **kwargs: Any):
        self._rewards: torch.Tensor | None = None
        self._prompt_ids: list[list[int]] = []
        self._completion_ids: list[list[int]] = []
        self._empty_rows: list[int] = []
        super().__init__(*args, **kwargs)

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        completion_ids, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self._empty_rows = []
        if self.loss_normalization == "step" and not self.tools:
            # TRL looks at the last token of each completion; the stand-in for one without tokens is masked later
            self._empty_rows = [i for i, ids in enumerate(completion_ids) if len(ids) == 0]
            for i in self._empty_rows:
                completion_ids[i] = [self._tokenizer.pad_token_id]
                if logprobs is not None:
                    logprobs[i] = [0.0]
        return completion_ids, logprobs

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        self._prompt_ids, self._completion_ids = generated[0], generated[1]
        if self.loss_normalization == "step" and self.use_vllm and not self.tools:
            self._log_truncation()
        return generated

    def _log_truncation(self) -> None:
        """Put right what TRL logs of completions that ended with a stop string: it counts them as cut off."""
        ended = ~torch.tensor(self._truncated(), device=self.accelerator.device)
        lengths = torch.tensor([len(ids) for ids in self._completion_ids], device=self.accelerator.device)
        ended, lengths = self.accelerator.gather(ended), self.accelerator.gather(lengths)
        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["completions/clipped_ratio"][-1] = 1 - ended.float().mean().item()
        lengths = lengths[ended].float() if ended.any() else torch.zeros(1)
        for name, value in (("mean", lengths.mean()), ("min", lengths.amin()), ("max", lengths.amax())):
            metrics[f"completions/{name}_terminated_length"][-1] = value.item()

    def _truncated(self) -> list[bool]:
        """Which of this rank's completions were cut off at the limit."""
        ends = (*self.eos_token_ids, self._tokenizer.pad_token_id)
        return [
            len(ids) >= self._room(prompt) and ids[-1] not in ends
            for prompt, ids in zip(self._prompt_ids, self._completion_ids, strict=True)
        ]

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        return self.keep_rewards(super()._calculate_rewards(inputs, prompts, completions, completion_ids_list))

    def keep_rewards(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Note the rewards (B of all ranks, R) that advantages are made from; returns them."""
        self._rewards = rewards_per_func
        return rewards_per_func

    def _generate_and_score_completions(self, inputs):
        if self.loss_normalization == "micro_batch":
            return self._adjust_advantages(super()._generate_and_score_completions(inputs))
        with overridden(self, mask_truncated_completions=False):
            output = super()._generate_and_score_completions(inputs)
        return self._adjust_advantages(self._mask_rows(output))

    def _mask_rows(self, output: dict[str, Any]) -> dict[str, Any]:
        """Take out truncated completions where asked to, and the stand-ins for empty ones; say which completions count."""
        device = output["completion_mask"].device
        out = torch.tensor(self._truncated(), device=device) & self.mask_truncated_completions  # (B,)
        empty = torch.zeros_like(out)
        empty[self._empty_rows] = True
        live = (~(out | empty)).unsqueeze(1)
        for name in ("completion_mask", "tool_mask"):
            if name in output:
                output[name] = output[name] * live
        output["counted"] = (~out).float()
        output["num_items_in_batch"] = self.accelerator.gather(loss_mask(output).sum()).sum()
        return output

    def _room(self, prompt_ids: list[int]) -> int:
        """Tokens that a completion may have; one that is shorter has ended, be it by an end token or a stop string."""
        limit = self.args.vllm_max_model_length if self.use_vllm and self.vllm_mode == "colocate" else None
        return (
            self.max_completion_length if limit is None else min(self.max_completion_length, limit - len(prompt_ids))
        )

    def _adjust_advantages(self, output: dict[str, Any]) -> dict[str, Any]:
        """Exact zeros where all rewards of a group are equal, and the chosen estimator of the std."""
        as_trl = self.loss_normalization == "micro_batch" and self.std_estimator == "sample"
        if as_trl or self.multi_objective_aggregation != "sum_then_normalize":
            return output
        mode = "train" if self.model.training else "eval"
        group = self.num_generations if mode == "train" else self.num_generations_eval
        rewards = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(dim=1)
        rewards[self._rewards.isnan().all(dim=1)] = torch.nan
        silent = no_signal(rewards, group)
        rows = len(output["advantages"])
        mine = slice(self.accelerator.process_index * rows, (self.accelerator.process_index + 1) * rows)
        if self.std_estimator == "sample":
            output["advantages"] = output["advantages"].masked_fill(silent[mine], 0.0)
        else:
            advantages = group_advantages(rewards, group, self.scale_rewards, self.std_estimator)
            output["advantages"] = advantages[mine]
            logged = self._logs["advantages"]
            for _ in range(len(advantages)):
                logged.pop()
            logged.extend(advantages.tolist())
        output["signal"] = (~silent[mine]).float()
        self._metrics[mode]["frac_reward_zero_std"][-1] = silent.float().mean().item()
        return output


@contextmanager
def overridden(trainer: Any, **attributes: Any) -> Iterator[None]:
    """Give attributes of the trainer other values for a while."""
    before = {name: getattr(trainer, name) for name in attributes}
    for name, value in attributes.items():
        setattr(trainer, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(trainer, name, value)
