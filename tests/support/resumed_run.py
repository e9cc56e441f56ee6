"""A run of eight steps that stops and resumes."""

from __future__ import annotations

from datasets import Dataset

from tests.support.clocks import timeless
from tests.support.tiny_run import tiny_arguments, tiny_trainer

STEPS = 8  # two epochs; a generation is used for four steps, twice over


def letters(completions, **kwargs):
    """1 or 0 by the text, so that some groups have no signal."""
    return [float(sum(map(ord, text)) % 5 == 0) for text in completions]


def make(folder, out, reward=letters, callbacks=None, **settings):
    rows = [
        {"prompt": f"Use {a}, {a + 1}, 3 to make {a + 4}.", "hard": a * 7 % 5} for a in range(1, 17)
    ]
    usual = {
        "max_steps": STEPS,
        "learning_rate": 1e-2,
        "logging_steps": 3,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    args = tiny_arguments(
        out,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_completion_length=6,
        **{**usual, **settings},
    )
    return tiny_trainer(
        folder,
        [reward],
        args,
        Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:3]),
        callbacks=callbacks,
    )


def weights(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def logged(trainer):
    """What was logged, but for clocks and the mean loss since the start of a process."""
    return list(map(timeless, trainer.state.log_history))


def spoil(trainer, steps, value):
    """Make the gradient of one weight `value` in these steps, after the backward pass."""

    def hook(gradient):
        if trainer.state.global_step + 1 in steps:
            gradient = gradient.clone()
            gradient.view(-1)[3] = value
        return gradient

    next(trainer.model.parameters()).register_hook(hook)
