"""Sample with the user's `rollout_func`, an argument of TRL's trainer."""

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
    """Samples by calling the user's `rollout_func`.

    Args:
        rollout_func: a function that is called with the prompts and the trainer. It returns a dict
            with `prompt_ids`, `completion_ids` and `logprobs`. The key `env_mask` may mark the
            tokens that the model sampled; other keys become columns for the rewards.
        trainer: the trainer that is passed to `rollout_func`.
        vllm: the sampler that updates the weights of a vLLM engine, which `rollout_func` may use;
            `None` if there is no such engine.
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
        """Call `rollout_func`; raise `ValueError` if its result is not a dict or lacks a key."""
        rollout = self.rollout_func(copy.deepcopy(request.prompts), self.trainer)
        if not isinstance(rollout, dict):
            raise ValueError(
                f"rollout_func must return a dict with the keys {', '.join(REQUIRED)}, but it "
                f"returned an object of type {type(rollout).__name__}."
            )
        missing = sorted(set(REQUIRED) - rollout.keys())
        if missing:
            raise ValueError(
                f"rollout_func must return a dict with the keys {', '.join(REQUIRED)}, but its "
                f"result lacks {', '.join(missing)}."
            )
        columns = dict(rollout)
        return Generation(
            prompt_ids=[list(ids) for ids in columns.pop("prompt_ids")],
            completion_ids=[list(ids) for ids in columns.pop("completion_ids")],
            policy_step=request.policy_step,
            sampling_logps=logp_tensors(columns.pop("logprobs")),
            tool_mask=columns.pop("env_mask", None),
            extra_fields=columns,  # the remaining columns, for the rewards
        )


def logp_tensors(logprobs: list[list[float | None]] | None) -> list[torch.Tensor] | None:
    """Convert rows of log-probs to tensors, with NaN for `None` entries; `None` stays `None`."""
    if logprobs is None:
        return None
    tensors = []
    for row in logprobs:
        values = [torch.nan if logp is None else logp for logp in row]
        tensors.append(torch.tensor(values))
    return tensors
