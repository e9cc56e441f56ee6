"""A run of a few steps with a generation under way, which writes down what each step trained on."""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import Dataset

from grpo_ext import GRPOExtTrainer
from tests.support.forked_samplers import use_forked_samplers
from tests.support.tiny_run import tiny_arguments, tiny_trainer

LR = 0.5


def letters(completions, **kwargs):
    """1 or 0 by the text, so that some groups have no signal."""
    return [float(sum(map(ord, text)) % 5 == 0) for text in completions]


class Noting(GRPOExtTrainer):
    """Keeps, by step, the micro-batches that it trains on, and the weights before."""

    def __init__(self, *args, **kwargs):
        self.steps = {}
        super().__init__(*args, **kwargs)

    def _compute_loss(self, model, inputs):
        if self.model.training:
            weights = {name: p.detach().clone() for name, p in self.model.named_parameters()}
            step = self.steps.setdefault(self.state.global_step, {"weights": weights, "used": []})
            step["used"].append(inputs.rows)
        return super()._compute_loss(model, inputs)


def make(folder, out, reward=letters, prompts=48, peft=None, rows=None, **settings):
    texts = [f"Use {a}, {a + 1}, 3 to make {a + 4}." for a in range(1, prompts + 1)]
    rows = rows or [{"prompt": text} for text in texts]
    usual = {
        "overlap": "one_step",
        "sampler": "process",
        "max_steps": 4,
        "learning_rate": LR,
        "max_completion_length": 6,
        "max_grad_norm": 0.0,
    }
    args = tiny_arguments(
        out,
        optim="sgd",
        lr_scheduler_type="constant",
        skip_dead_rows=False,
        **{**usual, **settings},
    )
    return tiny_trainer(
        folder,
        [reward],
        args,
        Dataset.from_list(rows),
        trainer_class=Noting,
        peft_config=peft,
    )


def train(folder, out, settings):
    """Train, and save the steps of this rank."""
    use_forked_samplers()
    trainer = make(folder, out, **settings)
    trainer.train()
    steps = trainer.steps
    last = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    torch.save(
        {"steps": steps, "last": last, "logs": trainer.state.log_history},
        Path(out) / f"{trainer.args.process_index}.pt",
    )
