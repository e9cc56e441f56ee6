"""Sampling by a function of the user: TRL's `rollout_func`."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from grpo_ext.samplers.base import Request, Sampler, SamplerAbilities
from grpo_ext.samplers.port import SampledTrainer
from grpo_ext.step.records import Generation

REQUIRED = ("prompt_ids", "completion_ids", "logprobs")


class FunctionSampler(Sampler):
    """Calls `rollout_func(prompts, trainer)`, which returns lists of tokens and columns for the
    rewards.

    The sampler loads the trainer's weights into `vllm`, which the function may use; `None`: the
    function samples from the model of the trainer.
    """

    name = "rollout_func"
    abilities = SamplerAbilities(tokenizes_prompts=True)

    def __init__(
        self,
        rollout_func: Callable[[list[Any], Any], dict[str, Any]],
        trainer: SampledTrainer,
        vllm: Sampler | None,
    ):
        self.rollout_func = rollout_func
        self.trainer = trainer
        self.vllm = vllm
        if vllm is not None:
            self.abilities = replace(
                self.abilities,
                separate_engine=vllm.abilities.separate_engine,
                truncation_order=vllm.abilities.truncation_order,
            )

    def load_weights(self, step: int) -> None:
        if self.vllm is not None:
            self.vllm.load_weights(step)

    def sample(self, request: Request) -> Generation:
        """Call the function; raise a `ValueError` if its result lacks a key."""
        rollout = self.rollout_func(copy.deepcopy(request.prompts), self.trainer)
        missing = sorted(set(REQUIRED) - rollout.keys())
        if missing:
            raise ValueError(f"rollout_func must return keys {missing} in its output dict.")
        columns = dict(rollout)  # what is left in it goes to the rewards
        prompt_ids = columns.pop("prompt_ids")
        completion_ids = columns.pop("completion_ids")
        logprobs = columns.pop("logprobs")
        tool_mask = columns.pop("env_mask", None)
        return Generation(
            prompt_ids=[list(ids) for ids in prompt_ids],
            completion_ids=[list(ids) for ids in completion_ids],
            policy_step=request.policy_step,
            sampling_logps=logp_tensors(logprobs),
            tool_mask=tool_mask,
            extra_fields=columns,
        )


def logp_tensors(logprobs: list[list[float | None]] | None) -> list[torch.Tensor] | None:
    """Return log-probs as tensors; a log-prob that vLLM did not return (`None`) becomes NaN."""
    if logprobs is None:
        return None
    return [torch.tensor([torch.nan if x is None else x for x in row]) for row in logprobs]
