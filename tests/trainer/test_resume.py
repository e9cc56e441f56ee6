"""A run that goes on from a checkpoint ends with the same weights, bit for bit, wherever it was
stopped.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from grpo_ext.rewards.guard import RewardFailure
from grpo_ext.trainer.checkpoint import CheckpointMismatch, why_no_state
from grpo_ext.trainer.manifest import MANIFEST, newest_whole, what_is_wrong, write_manifest
from tests.support.logs import json_rows
from tests.support.resumed_run import STEPS, logged, make, weights

# what keeps state from step to step
SETTINGS = {
    "half-used generations": {"steps_per_generation": 4, "num_iterations": 2},
    "truncated sampling, KL to a reference that moves": {
        "steps_per_generation": 4,
        "top_k": 9,
        "beta": 0.1,
        "sync_ref_model": True,
        "ref_model_sync_steps": 3,
    },
    "refill, adaptive curriculum": {
        "group_filter": "refill",
        "max_staleness": 0,
        "curriculum": "adaptive",
    },
    "groups of several slots": {
        "curriculum": "adaptive",
        "max_slots_per_prompt": 3,
        "steps_per_generation": 4,
    },
    "groups carried over": {"group_filter": "refill", "max_staleness": 4, "curriculum": "adaptive"},
    "right completions of carried groups and of a half-used generation": {
        "group_filter": "refill",
        "max_staleness": 8,
        "steps_per_generation": 4,
        "positive_nll_coef": 0.5,
    },
    "a generation under way": {
        "sampler": "process",
        "overlap": "one_step",
        "top_k": 9,
        "curriculum": "adaptive",
    },
    "a refilled one under way": {
        **{
            "sampler": "process",
            "overlap": "one_step",
            "group_filter": "refill",
            "max_staleness": 2,
        },
        **{"eval_strategy": "steps", "eval_steps": 2},
    },
    "easy to hard, a generation under way": {
        "sampler": "process",
        "overlap": "one_step",
        "curriculum": "easy_to_hard",
        "difficulty_column": "hard",
    },
    "completions that go on": {
        "sampler": "process",
        "overlap": "one_step",
        "partial_rollouts": 2,
        "top_k": 9,
    },
    "evaluation on": {"eval_strategy": "steps", "eval_steps": 2, "eval_temperature": 0.8},
}


@pytest.mark.usefixtures("sampler_forks")
@pytest.mark.parametrize("name", SETTINGS)
def test_the_weights_are_the_same_wherever_it_was_stopped(tiny_folder, tmp_path, name):
    whole = make(tiny_folder, tmp_path, **SETTINGS[name])
    whole.train()
    wanted = weights(whole)
    for step in range(1, STEPS):
        again = make(tiny_folder, tmp_path / "again", save_strategy="no", **SETTINGS[name])
        again.train(str(tmp_path / f"checkpoint-{step}"))
        assert again.state.global_step == STEPS
        different = [n for n, p in weights(again).items() if not torch.equal(p, wanted[n])]
        assert not different, (step, different[:3])
        assert logged(again) == logged(whole), step


def test_true_takes_the_newest_that_is_whole_and_tells_the_others(
    tiny_folder, tmp_path, caplog, capsys
):
    trainer = make(tiny_folder, tmp_path, save_total_limit=3)
    trainer.train()
    names = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert names == ["checkpoint-6", "checkpoint-7", "checkpoint-8"]
    (tmp_path / "checkpoint-8" / MANIFEST).unlink()
    damaged = tmp_path / "checkpoint-7" / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert newest_whole(tmp_path) == str(tmp_path / "checkpoint-6")
    assert "checkpoint-8 is skipped: it is incomplete" in caplog.text
    assert "checkpoint-7 is skipped: model.safetensors is damaged" in caplog.text
    assert "Resuming from" not in capsys.readouterr().out
    again = make(tiny_folder, tmp_path)
    again.train(True)
    assert f"Resuming from {tmp_path}/checkpoint-6.\n" in capsys.readouterr().out
    assert all(torch.equal(p, weights(trainer)[n]) for n, p in weights(again).items())


def test_what_is_wrong_with_a_checkpoint(tiny_folder, tmp_path):
    make(tiny_folder, tmp_path).train()
    folder = tmp_path / "checkpoint-8"
    assert what_is_wrong(folder) is None
    (folder / "trainer_state.json").unlink()
    assert what_is_wrong(folder) == "trainer_state.json is missing"
    (folder / MANIFEST).write_text("{")
    assert "damaged" in what_is_wrong(folder)
    assert newest_whole(tmp_path / "nowhere") is None


def test_a_failing_reward_leaves_the_checkpoint_before_it_alone(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, reward_max_failure_rate=0.0)
    calls = []

    def fails(*args, **kwargs):
        calls.append(1)
        if len(calls) > 2:
            raise RewardFailure("enough")
        return plain(*args, **kwargs)

    plain = trainer._calculate_rewards
    trainer._calculate_rewards = fails
    with pytest.raises(RewardFailure):
        trainer.train()
    folder = tmp_path / f"checkpoint-{trainer.state.global_step}"
    assert what_is_wrong(folder) is None
    again = make(tiny_folder, tmp_path)
    again.train(True)
    whole = make(tiny_folder, tmp_path / "whole")
    whole.train()
    assert all(torch.equal(p, weights(whole)[n]) for n, p in weights(again).items())


def test_what_ranks_on_a_cpu_have_saved_can_be_read(tmp_path):
    """accelerate puts them on `cpu:0`, and older versions of transformers read the optimizer's
    state to there.
    """
    torch.save({"exp_avg": torch.ones(3)}, tmp_path / "optimizer.pt")
    state = torch.load(
        tmp_path / "optimizer.pt", map_location=torch.device("cpu", 0), weights_only=True
    )
    assert torch.equal(state["exp_avg"], torch.ones(3)) and state["exp_avg"].device.type == "cpu"


def test_weights_alone_are_no_state_to_go_on_from(tiny_folder, tmp_path):
    make(tiny_folder, tmp_path, save_only_model=True).train()
    assert not list(tmp_path.glob("checkpoint-*/grpo_state_*"))
    with pytest.raises(CheckpointMismatch, match="with `save_only_model: true`, or by another tra"):
        make(tiny_folder, tmp_path).train(True)


def test_a_checkpoint_of_fewer_ranks_says_so(tmp_path):
    (tmp_path / "grpo_state_0.pt").touch()
    assert "saved by fewer ranks than this run has (2)" in why_no_state(
        tmp_path, "grpo_state_1.pt", 2
    )


def test_a_checkpoint_without_the_file_of_one_of_its_ranks_is_incomplete(tmp_path):
    for rank in (0, 2):
        (tmp_path / f"grpo_state_{rank}.pt").touch()
    message = why_no_state(tmp_path, "grpo_state_1.pt", 3)
    assert "has no grpo_state_1.pt, but has 2 files of other ranks, such as grpo_state_0" in message
    assert "fewer ranks" not in message and message.startswith(f"the checkpoint {tmp_path} is inc")


def test_a_resume_does_not_warn_of_tied_weights(tiny_folder, tmp_path, caplog):
    """The tiny model's head is its embedding, which checkpoints hold once."""
    first = make(tiny_folder, tmp_path)
    assert "lm_head.weight" in first.model.all_tied_weights_keys
    first.train()
    transformers_logging.enable_propagation()
    try:
        with caplog.at_level("WARNING"):
            again = make(tiny_folder, tmp_path)
            again.train(True)
    finally:
        transformers_logging.disable_propagation()
    assert not [record for record in caplog.records if "missing keys" in record.getMessage()]
    assert again.model.lm_head.weight is again.model.get_input_embeddings().weight
    assert all(torch.equal(p, weights(first)[n]) for n, p in weights(again).items())


@pytest.mark.parametrize(
    "make_folder, words",
    [
        (lambda path: None, "the folder does not exist"),
        (Path.mkdir, "it is incomplete"),
        (Path.touch, "the folder does not exist"),
    ],
)
def test_a_named_checkpoint_that_is_none_is_refused(tiny_folder, tmp_path, make_folder, words):
    make_folder(tmp_path / "checkpoint-3")
    with pytest.raises(CheckpointMismatch, match=words):
        make(tiny_folder, tmp_path).train(str(tmp_path / "checkpoint-3"))


def test_another_number_of_ranks_is_refused(tiny_folder, tmp_path):
    make(tiny_folder, tmp_path).train()
    path = tmp_path / "checkpoint-3" / "grpo_state_0.pt"
    torch.save({**torch.load(path, weights_only=False), "ranks": 2}, path)
    with pytest.raises(ValueError, match="cannot be used: grpo_state_0"):
        make(tiny_folder, tmp_path).train(str(path.parent))
    write_manifest(path.parent)
    with pytest.raises(ValueError, match="was saved with 2, and this run has 1"):
        make(tiny_folder, tmp_path).train(str(path.parent))


def test_a_run_that_is_done_takes_no_step_more(tiny_folder, tmp_path):
    settings = {
        "max_steps": 3,
        "num_train_epochs": 9,
        "curriculum": "adaptive",
    }  # in the midst of an epoch
    first = make(tiny_folder, tmp_path, **settings)
    first.train()
    again = make(tiny_folder, tmp_path, **settings)
    again.train(True)
    assert again.state.global_step == 3
    assert all(torch.equal(p, weights(first)[n]) for n, p in weights(again).items())
    lines = json_rows(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines if "train_runtime" in line] == [3]
