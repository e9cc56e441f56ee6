"""A run on prompts with images."""

from __future__ import annotations

import torch
from datasets import Dataset
from PIL import Image

from tests.support.tiny_run import arguments_of
from tests.support.tiny_vision import llava


def digits(completions, **kwargs):
    return [
        sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"]))
        for c in completions
    ]


def run(trainer_class, config_class, folder, out, chat=(), tools=None, **settings):
    """Train on four prompts with an image each; the trainer, and the weights afterwards."""
    model, processor = llava(folder, *chat)
    model.save_pretrained(out / "model")  # where TRL finds the reference
    model = type(model).from_pretrained(out / "model", dtype=torch.float32)
    colors = ("red", "green", "blue", "white")
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Use {a}, 3 to make {a + 4}."}],
            "image": Image.new("RGB", (8, 8), c),
        }
        for a, c in enumerate(colors)
    ]
    args = arguments_of(
        config_class,
        out,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=2,
        learning_rate=0.1,
        loss_type="grpo",
        optim="sgd",
        seed=3,
        **settings,
    )
    rows = Dataset.from_list(rows)
    trainer = trainer_class(
        model, digits, args, train_dataset=rows, processing_class=processor, tools=tools
    )
    trainer.train()
    return trainer, torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
