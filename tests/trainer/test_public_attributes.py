"""The public attributes of TRL's trainer have the same names and values in ours, and what a
callback writes to them counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.trainer import policy
from tests.support.logs import entries_with
from tests.support.tiny_run import arguments_of

# What TRL takes as it is and we wrap, replace or fill: callables, configurations of another class,
# objects of a run.
OTHER = {
    "args",
    "reward_funcs",
    "train_dataset",
    "eval_dataset",
    "callback_handler",
    "control",
    "state",
}
PLAIN = (bool, int, float, str, type(None))
ROWS = [{"prompt": f"Use {a}, {a + 1}, 3 to make {a + 4}."} for a in range(1, 17)]


def lengths(completions, **kwargs):
    return [float(len(text) % 3) for text in completions]


def even(completions, **kwargs):
    return [float(len(text) % 2) for text in completions]


def trainer_of(trainer_class, config, folder, out, callbacks=(), **settings):
    args = arguments_of(
        config,
        out,
        max_completion_length=6,
        max_steps=3,
        vllm_importance_sampling_mode="token_truncate",
        learning_rate=1e-3,
        **settings,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    rows = Dataset.from_list(ROWS)
    return trainer_class(
        str(folder), [lengths, even], args, rows, rows, tokenizer, callbacks=list(callbacks)
    )


def plain(value):
    """The value as plain data; raises `TypeError` for an object that has none."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return list(map(plain, value))
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    raise TypeError


def public(trainer):
    """The public attributes of a trainer with plain values, by name, and the names of all."""
    names = set()
    values = {}
    for name, value in vars(trainer).items():
        if name.startswith("_"):
            continue
        names.add(name)
        try:
            values[name] = plain(value)
        except TypeError:
            continue
    return names, values


SETTINGS = {
    "plain": {},
    "all that moves": {
        "beta": 0.04,
        "entropy_coef": 0.01,
        "use_adaptive_entropy": True,
        "entropy_target": 50.0,
        "epsilon_high": 0.28,
        "num_iterations": 2,
        "steps_per_generation": 2,
        "gradient_accumulation_steps": 1,
        "reward_weights": [1.0, 0.5],
        "num_generations_eval": 2,
        "scale_rewards": "none",
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_they_have_the_same_names_and_values_after_a_run(tiny_folder, tmp_path, name):
    settings = {"disable_dropout": True, **SETTINGS[name]}
    theirs = trainer_of(GRPOTrainer, GRPOConfig, tiny_folder, tmp_path / "theirs", **settings)
    ours = trainer_of(GRPOExtTrainer, GRPOExtConfig, tiny_folder, tmp_path / "ours", **settings)
    theirs.train()
    ours.train()
    names, wanted = public(theirs)
    found_names, found = public(ours)
    assert names - found_names == set()
    assert len(wanted) > 40
    differs = {
        key: (found.get(key, "no plain value"), value)
        for key, value in wanted.items()
        if key not in OTHER and found.get(key, "no plain value") != value
    }
    assert differs == {}
    if name == "all that moves":
        assert ours.entropy_coef == pytest.approx(0.01 + 3 * 0.005)
        assert ours._last_world_entropy == pytest.approx(theirs._last_world_entropy, rel=0.1)


class Writes(TrainerCallback):
    """Writes attributes of a trainer after its first step."""

    def __init__(self, **values):
        self.values, self.trainer = values, None

    def on_step_end(self, args, state, control, **kwargs):
        for name, value in self.values.items() if state.global_step == 1 else ():
            setattr(self.trainer, name, value)


def test_what_a_callback_writes_counts_from_the_next_step(tiny_folder, tmp_path, monkeypatch):
    values = {
        "beta": 0.5,
        "epsilon_low": 0.1,
        "epsilon_high": 0.9,
        "entropy_coef": 0.25,
        "importance_sampling_level": "sequence",
        "reward_weights": torch.tensor([0.0, 2.0]),
    }
    writes = Writes(**values)
    seen = []
    step_loss = policy.step_loss

    def noted(scores, batch, settings, weight, *rest):
        seen.append((settings, weight))
        return step_loss(scores, batch, settings, weight, *rest)

    monkeypatch.setattr(policy, "step_loss", noted)
    trainer = trainer_of(
        GRPOExtTrainer, GRPOExtConfig, tiny_folder, tmp_path, [writes], beta=0.04, entropy_coef=0.01
    )
    writes.trainer = trainer
    trainer.train()
    (before, first), (after, second), _ = seen
    assert (before.beta, before.options.epsilon_high, first) == (0.04, 0.2, 0.01)
    assert (after.beta, after.options.epsilon_low, after.options.epsilon_high) == (0.5, 0.1, 0.9)
    assert after.importance_sampling_level == "sequence" and second == 0.25
    logged = entries_with(trainer, "reward")
    assert logged[0]["reward"] == pytest.approx(
        logged[0]["rewards/lengths/mean"] + logged[0]["rewards/even/mean"]
    )
    assert logged[1]["reward"] == pytest.approx(2 * logged[1]["rewards/even/mean"])
    assert all(math.isfinite(row["loss"]) for row in logged)
