"""A GRPO loop written from scratch in a hundred lines, with common faults as switches.

Without faults, the loop computes what `GRPOExtTrainer` computes with `loss_type: grpo`; a test
compares the weights after three steps. `benchmarks/loop_faults.py` measures the effect of each
fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from grpo_ext.rewards.countdown_reward import countdown
from grpo_ext.rewards.format_rewards import format_


@dataclass(frozen=True)
class Problem:
    """A problem of Countdown."""

    prompt: str  # as the model reads it
    nums: list[int]
    target: int


class Fault(StrEnum):
    """Common faults of loops that are written from scratch."""

    KL_INVERTED = "KL with its ratio inverted"
    ONE_GROUP = "one group for the whole batch"
    SUMMED_MICRO_BATCHES = "micro-batches summed"
    SCORED_WHOLE = "truncated sampling, scored whole"
    ANY_ANSWER = "any of several answers counts"
    MASK_WITHOUT_END = "mask without the end token"
    PADDING_IN_MEAN = "padding in the mean"


@dataclass(frozen=True)
class Settings:
    """Settings of the loop, named as in `GRPOConfig`."""

    optim: str = "adamw_torch"  # or "sgd"
    learning_rate: float = 4e-4
    beta: float = 0.0
    epsilon: float = 0.2
    num_generations: int = 8
    micro_batches: int = 1  # of a step
    max_completion_length: int = 72
    top_k: int = 0
    top_p: float = 1.0
    max_grad_norm: float = 1.0
    faults: frozenset[Fault] = frozenset()


RewardFunction = Callable[[list[str], list[Problem], Settings], torch.Tensor]


@dataclass(frozen=True)
class Rollout:
    """Prompts with their sampled completions, in `B` rows.

    Prompts are padded on the left to `P` tokens, completions on the right to `T`.
    """

    ids: torch.Tensor  # (B, P + T)
    attention_mask: torch.Tensor  # (B, P + T)
    completion_mask: torch.Tensor  # (B, T), 1 up to and including the first end token

    def rows(self, start: int, end: int) -> Rollout:
        return Rollout(
            self.ids[start:end], self.attention_mask[start:end], self.completion_mask[start:end]
        )


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    settings: Settings,
) -> Rollout:
    """Sample one completion of each prompt at temperature 1."""
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    prompt_length = inputs["input_ids"].shape[1]
    generate: Any = model.generate  # transformers gives it no usable type
    ids = generate(
        **inputs,
        do_sample=True,
        top_k=settings.top_k,
        top_p=settings.top_p,
        max_new_tokens=settings.max_completion_length,
    )
    is_end = ids[:, prompt_length:] == tokenizer.eos_token_id  # (B, T)
    ends_before = is_end.cumsum(dim=1) - is_end.long()
    completion_mask = (ends_before == 0).long()
    attention_mask = torch.cat([inputs["attention_mask"], completion_mask], dim=1)
    return Rollout(ids, attention_mask, completion_mask)


def per_token_logps(
    model: PreTrainedModel, rollout: Rollout, settings: Settings
) -> torch.Tensor:  # (B, T)
    """Return the log-prob of each sampled token under the policy that sampled it."""
    length = rollout.completion_mask.shape[1]
    logits = model(rollout.ids, attention_mask=rollout.attention_mask).logits
    logits = logits[:, -length - 1 : -1]  # (B, T, V): those at t - 1 predict the token at t
    targets = rollout.ids[:, -length:]  # (B, T)
    vocabulary = logits.shape[-1]
    scores = logits.reshape(-1, vocabulary)  # (B * T, V)
    if Fault.SCORED_WHOLE not in settings.faults:
        if settings.top_k > 0:
            scores = TopKLogitsWarper(settings.top_k)(rollout.ids, scores)
        if settings.top_p < 1:
            scores = TopPLogitsWarper(settings.top_p)(rollout.ids, scores)
    logps = scores.log_softmax(dim=-1).gather(1, targets.reshape(-1, 1))
    # Tokens behind the end were not sampled: a truncated policy may give them probability 0.
    return logps.view_as(targets).masked_fill(rollout.completion_mask == 0, 0.0)


def rewards_of(
    completions: list[str], problems: list[Problem], settings: Settings
) -> torch.Tensor:  # (B,)
    """Return 1 for a right answer, and a quarter more for the format."""
    well_formed = format_(completions)
    rewards = []
    for completion, problem, form in zip(completions, problems, well_formed, strict=True):
        answers = [completion]
        if Fault.ANY_ANSWER in settings.faults:
            answers = re.findall(r"<answer>.*?</answer>", completion, re.DOTALL)
        copies = len(answers)
        scores = countdown(answers, [problem.nums] * copies, [problem.target] * copies)
        rewards.append(max(scores, default=0.0) + 0.25 * form)
    return torch.tensor(rewards)


def advantages_of(rewards: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Return the advantages (B,): rewards minus the group's mean, divided by the group's std."""
    group_size = settings.num_generations
    if Fault.ONE_GROUP in settings.faults:
        group_size = len(rewards)
    groups = rewards.view(-1, group_size)
    centered = groups - groups.mean(dim=1, keepdim=True)
    return (centered / (groups.std(dim=1, keepdim=True) + 1e-4)).flatten()


def kl_estimate(policy: torch.Tensor, reference: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Return Schulman's k3 estimate of KL(policy || reference) from log-probs, (B, T)."""
    log_ratio = reference - policy
    if Fault.KL_INVERTED in settings.faults:
        log_ratio = policy - reference
    return log_ratio.exp() - log_ratio - 1


def loss_of(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    reference_logps: torch.Tensor | None,
    advantages: torch.Tensor,
    completion_mask: torch.Tensor,
    settings: Settings,
) -> torch.Tensor:
    """Return the loss: the mean over completions of the mean over each completion's tokens."""
    ratio = (logps - old_logps).exp()
    clipped = ratio.clamp(1 - settings.epsilon, 1 + settings.epsilon)
    per_row = advantages.unsqueeze(1)  # (B, 1)
    per_token = -torch.minimum(ratio * per_row, clipped * per_row)
    if reference_logps is not None:
        per_token = per_token + settings.beta * kl_estimate(logps, reference_logps, settings)
    counted = completion_mask
    if Fault.MASK_WITHOUT_END in settings.faults:
        shifted = torch.zeros_like(counted[:, :1])
        counted = torch.cat([counted[:, 1:], shifted], dim=1)
    lengths = counted.sum(dim=1).clamp(min=1)
    if Fault.PADDING_IN_MEAN in settings.faults:
        lengths = torch.full_like(lengths, counted.shape[1])
    return ((per_token * counted).sum(dim=1) / lengths).mean()


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    steps: Iterable[list[Problem]],
    settings: Settings,
    seed: int = 0,
    reward_function: RewardFunction = rewards_of,
) -> Iterator[dict[str, float]]:
    """Train `model` in place; yield the figures of each step.

    Args:
        steps: the distinct problems of each step.
        seed: completions of step `i` are sampled with the seed `seed + i`.
    """
    reference = deepcopy(model).eval().requires_grad_(False)
    model.eval()  # no dropout
    optimizer_class = {"adamw_torch": torch.optim.AdamW, "sgd": torch.optim.SGD}[settings.optim]
    optimizer = optimizer_class(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    for step, distinct_problems in enumerate(steps):
        problems = [
            problem for problem in distinct_problems for _ in range(settings.num_generations)
        ]
        torch.manual_seed(seed + step)
        rollout = sample(model, tokenizer, [problem.prompt for problem in problems], settings)
        length = rollout.completion_mask.shape[1]
        completions = tokenizer.batch_decode(rollout.ids[:, -length:], skip_special_tokens=True)
        rewards = reward_function(completions, problems, settings)
        advantages = advantages_of(rewards, settings)
        rows = len(problems) // settings.micro_batches
        for start in range(0, len(problems), rows):
            part = rollout.rows(start, start + rows)
            logps = per_token_logps(model, part, settings)
            reference_logps = None
            if settings.beta > 0:
                with torch.no_grad():
                    reference_logps = per_token_logps(reference, part, settings)
            loss = loss_of(
                logps,
                logps.detach(),  # one update a generation: the old policy is the policy
                reference_logps,
                advantages[start : start + rows],
                part.completion_mask,
                settings,
            )
            if Fault.SUMMED_MICRO_BATCHES not in settings.faults:
                loss = loss / settings.micro_batches
            loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        yield {
            "reward": float(rewards.mean()),
            "completion_length": float(rollout.completion_mask.sum()) / len(problems),
            "grad_norm": float(grad_norm),
        }
