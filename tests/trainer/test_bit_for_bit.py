"""With our options off a run is TRL's own, to the last bit."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from tests.support.clocks import timeless

OFF = {"loss_normalization": "micro_batch", "logprob_policy": "trl", "fast_generate": False}


def digits(completions, **kwargs):
    """Between 0 and 1, different for most completions."""
    return [
        sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"]))
        for c in completions
    ]


def brief(completions, **kwargs):
    return [1.0 / (1 + len(c[0]["content"])) for c in completions]


def run(trainer_class, config_class, folder, out, eval_dataset=None, **settings):
    settings = {
        "loss_type": "dapo",
        "beta": 0.0,
        "max_steps": 5,
        "max_completion_length": 12,
        **settings,
    }
    args = config_class(
        output_dir=str(out),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        learning_rate=1e-3,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        seed=3,
        **settings,
    )
    rows = [
        {"prompt": [{"role": "user", "content": f"Use {a}, {a + 1}, 3 to make {a + 4}."}]}
        for a in range(1, 9)
    ]
    trainer = trainer_class(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=[digits, brief],
        args=args,
        train_dataset=Dataset.from_list(rows),
        eval_dataset={"few": Dataset.from_list(rows[:3]), "one": Dataset.from_list(rows[:1])}
        if eval_dataset
        else None,
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
    )
    trainer.train()
    history = [
        {
            key: value for key, value in timeless(entry).items() if "groups/" not in key
        }  # TRL has no figures of groups
        for entry in trainer.state.log_history
        if not any(key.startswith("eval") for key in entry)
    ]
    return history, {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "beta": 0.04,
            "loss_type": "grpo",
            "steps_per_generation": 4,
            "temperature": 0.8,
            "top_k": 10,
        },
        # long enough for some completions to end
        {
            "loss_type": "bnpo",
            "num_iterations": 2,
            "scale_rewards": "batch",
            "mask_truncated_completions": True,
            "max_completion_length": 64,
        },
    ],
    ids=["defaults", "kl_and_steps_per_generation", "bnpo_two_iterations"],
)
def test_same_losses_and_weights_as_trl(tiny_folder, tmp_path, settings):
    theirs = run(GRPOTrainer, GRPOConfig, tiny_folder, tmp_path / "trl", **settings)
    ours = run(GRPOExtTrainer, GRPOExtConfig, tiny_folder, tmp_path / "ours", **OFF, **settings)
    assert theirs[0] == ours[0]
    assert all(torch.equal(theirs[1][name], ours[1][name]) for name in theirs[1])
    start = AutoModelForCausalLM.from_pretrained(tiny_folder).state_dict()
    assert any(
        not torch.equal(weights, start[name]) for name, weights in ours[1].items()
    )  # it did train


def test_a_plain_grpo_config_means_our_defaults(tiny_folder, tmp_path):
    # TRL's own default, which a `GRPOConfig` has
    settings = {"gradient_checkpointing": True}
    plain = run(GRPOExtTrainer, GRPOConfig, tiny_folder, tmp_path / "plain", **settings)
    ours = run(GRPOExtTrainer, GRPOExtConfig, tiny_folder, tmp_path / "ours", **settings)
    assert plain[0] == ours[0]
    assert all(torch.equal(plain[1][name], ours[1][name]) for name in plain[1])


def test_the_preset_trl_switches_all_of_ours_off(tmp_path):
    from grpo_ext.objective.presets import PRESETS

    assert {key: value for key, (value, _) in PRESETS["trl"].items() if key in OFF} == OFF
    ours, theirs = (
        cls(str(tmp_path), use_cpu=True, bf16=False) for cls in (GRPOExtConfig, GRPOConfig)
    )
    for key, (value, _) in PRESETS["trl"].items():
        assert key in OFF or getattr(theirs, key, getattr(ours, key)) == value


@pytest.mark.parametrize(
    "how",
    [
        {"eval_temperature": 0.0},
        {
            "eval_temperature": 0.7,
            "eval_top_p": 0.9,
            "eval_top_k": 20,
            "eval_min_p": 0.01,
            "eval_num_samples": 3,
        },
    ],
    ids=["greedy", "sampled"],
)
def test_evaluation_leaves_training_bit_identical(tiny_folder, tmp_path, how):
    training = {"max_steps": 10, "top_k": 30, "beta": 0.04}
    without = run(GRPOExtTrainer, GRPOExtConfig, tiny_folder, tmp_path / "off", **training)
    settings = {"eval_strategy": "steps", "eval_steps": 1, **how, **training}
    evaluated = run(
        GRPOExtTrainer, GRPOExtConfig, tiny_folder, tmp_path / "on", eval_dataset=True, **settings
    )
    assert len(without[0]) == 11  # ten steps and the summary
    assert without[0] == evaluated[0]
    assert all(torch.equal(without[1][name], evaluated[1][name]) for name in without[1])
