"""A trainer whose completions and rewards are scripted, so that it is known which groups have no
signal, and an oracle.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer

from grpo_ext import GRPOExtTrainer
from grpo_ext.run.ranks import leave_ranks
from tests.support.fixed_completions import Catch, fixed_completion, lucky
from tests.support.forked import on_ranks
from tests.support.oracle import loss_of_step, token_logps
from tests.support.tiny_run import tiny_arguments

GROUP, LENGTH, GROUPS = (
    4,
    9,
    4,
)  # completions a prompt, tokens a completion, groups an optimizer step
DEAD = {2: 0.0, 3: 1.0, 7: 0.0, 14: 1.0}  # prompt -> what every completion of it scores
FORMAT = 0.25  # weight of the reward that varies in every group


def prompt_of(number: int) -> str:
    return f"Use {number}, {number + 1}, 3 to make {number + 4}."


def solved(completions, completion_ids, number, **kwargs):
    """The outcome: some number of each completion, and all the same for prompts of `DEAD`."""
    values = lucky(completions, completion_ids)
    return [DEAD.get(n, value) for n, value in zip(number, values, strict=True)]


def shaped(completions, completion_ids, **kwargs):
    """A reward that varies within every group."""
    return [float(sum(ids) % 3) + 0.1 * len(ids) for ids in completion_ids]


class Scripted(GRPOTrainer):
    """In place of sampling: the n-th completion of a prompt, n counted over all ranks."""

    calls: list[list[int]]

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        everyone = gather_object(list(map(list, prompt_ids)))
        seen = {}
        out = []
        for prompt in map(tuple, everyone):
            seen[prompt] = seen.get(prompt, -1) + 1
            out.append(
                fixed_completion(
                    list(prompt), seen[prompt], len(self._tokenizer), self._tokenizer.eos_token_id
                )
            )
        first = self.accelerator.process_index * len(prompt_ids)
        return out[first : first + len(prompt_ids)], None

    def _calculate_rewards(self, inputs, *args):
        numbers = [row["number"] for row in inputs]
        self.calls.append(gather_object(numbers)[::GROUP])
        return super()._calculate_rewards(inputs, *args)


class Filtered(Scripted, GRPOExtTrainer):
    def __init__(self, *args, **kwargs):
        self.calls = []
        super().__init__(*args, **kwargs)


def train(
    folder,
    out,
    *,
    ranks=1,
    ga=1,
    steps=1,
    numbers=range(1, 25),
    further=12,
    make=None,
    rewards=(solved, shaped),
    **settings,
):
    """Train on scripted completions; further prompts start at row `further`.

    Returns:
        the trainer, and the gradients and weights of each optimizer step.
    """
    settings = {"loss_type": "grpo", "beta": 0.0, "steps_per_generation": ga, **settings}
    args = tiny_arguments(
        out,
        max_steps=steps,
        per_device_train_batch_size=GROUPS * GROUP // (ga * ranks),
        gradient_accumulation_steps=ga,
        num_generations=GROUP,
        max_completion_length=LENGTH,
        learning_rate=settings.pop("learning_rate", 0.3),
        optim="sgd",
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        reward_weights=settings.pop("reward_weights", [1.0, FORMAT]),
        logging_steps=settings.pop("logging_steps", 1),
        **settings,
    )
    rows = Dataset.from_list(
        [{"prompt": prompt_of(n), "number": n, "task": ("even", "odd")[n % 2]} for n in numbers]
    )
    catch = Catch()
    trainer = Filtered(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=list(rewards),
        args=args,
        train_dataset=rows if make is None else make(rows),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        callbacks=[catch],
    )
    if trainer.parts.order.further is not None:
        trainer.parts.order.further.position = further
    trainer.train()
    return trainer, catch.steps


def write_rates(path: Path, numbers=range(1, 25), samples: int = 17) -> str:
    """Write a file of pass rates by which no completion of these prompts is right, and return its
    path.
    """
    lines = [{"prompt": prompt_of(number), "rewards": {"solved": 0.0}} for number in numbers]
    path.write_text("".join((json.dumps(line) + "\n") * samples for line in lines))
    return str(path)


def oracle(folder, plan, weights, loss_type="grpo", scale="group"):
    """The gradient of a step that saw these groups alone.

    Args:
        plan: prompts, each with the weights that sampled its completions.
        weights: those that the step starts from.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, old = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for _ in range(2)
    )
    model.load_state_dict(weights, strict=False)
    rows = []
    rewards = []
    for number, sampled_by in plan:
        old.load_state_dict(sampled_by, strict=False)
        prompt = tokenizer(prompt_of(number))["input_ids"]
        group = [
            fixed_completion(prompt, n, len(tokenizer), tokenizer.eos_token_id)
            for n in range(GROUP)
        ]
        outcome = solved(group, group, [number] * GROUP)
        assert len(set(outcome)) > 1, f"{number} should have signal"
        scores = torch.tensor(
            [a + FORMAT * b for a, b in zip(outcome, shaped(group, group), strict=True)]
        )
        rewards.append(scores)
        for completion, advantage in zip(
            group, (scores - scores.mean()) / (scores.std() + 1e-4), strict=True
        ):
            with torch.no_grad():
                before = token_logps(old, prompt, completion)
            logps = token_logps(model, prompt, completion)
            rows.append(
                {
                    "logps": logps,
                    "old": before,
                    "advantage": float(advantage),
                    "masked": False,
                    "useful": True,
                }
            )
    if scale == "batch":
        std = torch.cat(rewards).std() + 1e-4
        centered = torch.cat([scores - scores.mean() for scores in rewards]) / std
        for row, advantage in zip(rows, centered.tolist(), strict=True):
            row["advantage"] = advantage
    loss = loss_of_step(loss_type, rows, max_length=LENGTH)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


def on_two_ranks(folder: Path, jobs: list[dict]) -> list[dict]:
    """For each job, settings of `train`.

    The prompts of its generations, gradients and weights of its steps, its logs.
    """
    with tempfile.TemporaryDirectory() as out:
        on_ranks(2, train_all, folder, Path(out), jobs)
        return torch.load(Path(out) / "found.pt", weights_only=False)


def gloo_threads() -> list[str]:
    names = [
        task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()
    ]
    return [name for name in names if "gloo" in name]


def train_all(folder: Path, out: Path, jobs: list[dict]) -> None:
    """What each rank does: train on its share, save what was found, and leave the others."""
    save_all(folder, out, jobs)
    assert gloo_threads(), "the group has its threads before it is left"
    leave_ranks()
    assert not gloo_threads(), (
        "a thread of the group lives on, and may abort the process while Python ends"
    )


def save_all(folder: Path, out: Path, jobs: list[dict]) -> None:
    found = []
    for job in jobs:
        trainer, steps = train(folder, out, ranks=2, **job)
        found.append({"calls": trainer.calls, "steps": steps, "logs": trainer.state.log_history})
    if int(os.environ["RANK"]) == 0:
        torch.save(found, out / "found.pt")
