"""Steps on fixed completions, cut in several ways, and the gradient that the optimizer gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_ext import GRPOExtTrainer
from grpo_ext.objective.policy import loss_names
from grpo_ext.step.records import MicroBatch, Scored

LOSSES = loss_names()

ROWS = 16  # completions per optimizer step

GROUP = 4  # completions per prompt

LENGTH = 9  # tokens per completion


Tensors = dict[str, torch.Tensor]  # weights of a model, or their gradients, by name

CUTS = [(ga, spg) for ga in (1, 2, 4, 8) for spg in (ga // 2, ga, 2 * ga) if spg]


@dataclass
class Config(GRPOConfig):
    """TRL's arguments, with our fields of the objective."""

    loss_normalization: str = "step"
    logprob_policy: str = "sampling"
    std_estimator: str = "sample"
    advantage_normalizer: str = "all"
    kl_estimator: str = "k3"
    sampler_check_share: float = 1.0


def fixed_completion(prompt: list[int], nth: int, vocab: int, eos: int) -> list[int]:
    """A completion that depends only on the prompt and its place in the group.

    Empty, truncated, or ended.
    """
    g = torch.Generator().manual_seed(1000 * sum(prompt) + nth)
    kind = (sum(prompt) + nth) % 7
    length = (
        0 if kind == 0 else LENGTH if kind < 3 else int(torch.randint(1, LENGTH, (1,), generator=g))
    )
    ids = [
        x if x != eos else x + 1
        for x in torch.randint(5, vocab - 1, (length,), generator=g).tolist()
    ]
    return [*ids, eos] if kind > 2 else ids


class FixedCompletions(GRPOTrainer):
    """Replaces sampling by completions that are the same for every cut of the step."""

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], None]:
        seen: dict[tuple[int, ...], int] = {}
        out = []
        for prompt in map(tuple, prompt_ids):
            seen[prompt] = seen.get(prompt, -1) + 1
            out.append(
                fixed_completion(
                    list(prompt), seen[prompt], len(self._tokenizer), self._tokenizer.eos_token_id
                )
            )
        return out, None


class Plain(FixedCompletions):
    """TRL's trainer, which takes no empty completions."""

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], None]:
        ids, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        return [x or [self._tokenizer.eos_token_id] for x in ids], logprobs


class Exact(FixedCompletions, GRPOExtTrainer):
    """Our trainer; keeps the completions of each step as they were before they went to
    micro-batches.
    """

    used: list[Scored]

    def __init__(self, *args: Any, **kwargs: Any):
        self.used = []
        super().__init__(*args, **kwargs)
        feed = self.parts.feed
        cut = feed.cut

        def keep(slices: list[Scored]) -> list[MicroBatch]:
            self.used.extend(slices)
            return cut(slices)

        feed.cut = keep


class Catch(TrainerCallback):
    """Records the gradients of each optimizer step, and the weights before it."""

    def __init__(self) -> None:
        self.steps: list[tuple[Tensors, Tensors]] = []

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        named = [(name.removeprefix("module."), p) for name, p in model.named_parameters()]
        self.steps.append(
            (
                {n: p.grad.clone() for n, p in named if p.grad is not None},
                {n: p.detach().clone() for n, p in named},
            )
        )


def lucky(completions: Any, completion_ids: list[list[int]], **kwargs: Any) -> list[float | None]:
    """A number that the completion determines."""
    return [float((7 * sum(ids) + len(ids)) % 5) for ids in completion_ids]


def train(
    folder: Path | str,
    out: Path | str,
    ga: int,
    spg: int,
    *,
    trainer_class: type[FixedCompletions] = Exact,
    config: type[GRPOConfig] = Config,
    ranks: int = 1,
    steps: int = 1,
    ref_noise: float = 0.02,
    numbers: Any = range(1, 17),
    **settings: Any,
) -> tuple[Any, list[tuple[Tensors, Tensors]]]:
    """Train on fixed completions.

    Args:
        folder: of the model and its tokenizer.
        out: folder for TRL.
        ga, spg: accumulation and steps_per_generation.
        ref_noise: standard deviation of the noise on the reference's weights.
        numbers: the prompts are made from these, in this order.

    Returns:
        the trainer, and the gradients and weights of each optimizer step.
    """
    args = config(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=ROWS // (ga * ranks),
        gradient_accumulation_steps=ga,
        steps_per_generation=spg,
        num_generations=GROUP,
        max_completion_length=LENGTH,
        learning_rate=settings.pop("learning_rate", 1e-3),
        optim="sgd",
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        seed=3,
        **settings,
    )
    catch = Catch()
    trainer = trainer_class(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=[lucky],
        args=args,
        train_dataset=Dataset.from_list(
            [{"prompt": f"Use {a}, {a + 1}, 3 to make {a + 4}."} for a in numbers]
        ),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        callbacks=[catch],
    )
    if trainer.ref_model is not None:
        g = torch.Generator().manual_seed(9)
        for p in trainer.ref_model.parameters():
            p.data.add_(ref_noise * torch.randn(p.shape, generator=g))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer, catch.steps


def keep_order() -> None:
    """Without a shuffle the first step has the same completions, however they are cut."""
    import trl.trainer.grpo_trainer as module

    from grpo_ext.step import feed

    module.shuffle_sequence_dict = lambda seq_dict: seq_dict
    feed.random_order = lambda rows: torch.arange(rows)


def apart(a: Tensors, b: Tensors) -> float:
    """Return the relative difference of two gradients."""
    x, y = (torch.cat([g[name].flatten().double() for name in sorted(a)]) for g in (a, b))
    assert y.norm() > 0
    return float((x - y).norm() / y.norm())
