"""A pretrained model through the trainer: tokens, log-probs, gradients, adapters, resumed runs."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.run.merge_adapter import merge_adapter
from tests.support.forked import Forked
from tests.support.real_run import SMALL_STEP, Rewarded, make, train_to_the_end, trained
from tests.support.step_bench import Bench

TRUNCATIONS = [{}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05, "temperature": 0.8}]


@pytest.mark.parametrize("sampling", TRUNCATIONS, ids=str)
def test_sampler_and_trainer_have_the_same_log_probs(smollm2, tmp_path, sampling):
    trainer = make(smollm2, tmp_path, sampler="process", behaviour_policy="sampler", **sampling)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logs) == 2
    for entry in logs:
        assert entry["sampling/logp_difference/max"] < 1e-4


def test_the_ids_that_are_trained_on_are_those_of_the_template_and_the_sampler(smollm2, tmp_path):
    rewarded = Rewarded()
    trainer = make(smollm2, tmp_path, reward=rewarded, max_steps=1)
    scored = []
    compute_loss = trainer._compute_loss

    def watched(model, inputs):
        scored.append(inputs)
        return compute_loss(model, inputs)

    trainer._compute_loss = watched
    trainer.train()
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    rows = set()
    for prompt, completion in zip(rewarded.prompts, rewarded.completion_ids, strict=True):
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        rows.add((tuple(ids), tuple(completion)))
    trained_rows = set()
    for batch in scored:
        table = batch.rows
        for row in range(len(table)):
            prompt = table.prompt_ids[row][table.prompt_mask[row].bool()]
            completion = table.completion_ids[row][table.completion_mask[row].bool()]
            trained_rows.add((tuple(prompt.tolist()), tuple(completion.tolist())))
    assert trained_rows and trained_rows <= rows


@pytest.mark.parametrize("layout", ["auto", "padded", "chunks", "packed"])
def test_the_gradient_is_that_of_plain_trl(smollm2, layout):
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    bench = Bench(replace(SMALL_STEP, settings=(("layout", layout),)), model=model)
    gradients = {}
    for side in ("TRL", "ours"):
        gradients[side] = bench.step(side)[2]
    difference = (gradients["ours"] - gradients["TRL"]).abs().max()
    assert difference < 2e-5 * gradients["TRL"].abs().max()


def test_an_adapter_is_resumed_bit_for_bit_and_merged(smollm2, tmp_path):
    settings = {"lora": True, "max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    settings |= {"learning_rate": 1e-3, "top_k": 50, "beta": 0.02}
    whole = make(smollm2, tmp_path / "whole", **settings)
    whole.train()
    expected = trained(whole)
    resumed = make(smollm2, tmp_path / "whole", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    for name, parameter in trained(resumed).items():
        assert torch.equal(parameter, expected[name]), name
    whole.save_model()
    difference = merge_adapter(tmp_path / "whole" / "checkpoint-3", tmp_path / "merged")
    assert difference < 1e-3


def test_a_killed_run_ends_as_if_it_had_not_been_killed(smollm2, tmp_path):
    train_to_the_end(smollm2, tmp_path / "whole")
    killed = Forked(train_to_the_end, smollm2, tmp_path / "killed", 2)
    assert killed.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "checkpoint-3").exists()
    train_to_the_end(smollm2, tmp_path / "killed")
    last = "checkpoint-3/adapter_model.safetensors"
    expected = load_file(tmp_path / "whole" / last)
    for name, weight in load_file(tmp_path / "killed" / last).items():
        assert torch.equal(weight, expected[name]), name


def test_a_reward_model_of_the_same_family_scores_conversations(smollm2, tmp_path):
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    reward = AutoModelForSequenceClassification.from_pretrained(smollm2, num_labels=1)
    trainer = make(smollm2, tmp_path, reward=reward, max_steps=1)
    trainer.train()
    [entry] = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert entry["reward_std"] > 0 and entry["grad_norm"] > 0
