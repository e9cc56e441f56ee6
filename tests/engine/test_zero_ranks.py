"""ZeRO on two ranks of a CPU, DeepSpeed's own: it learns what one rank does, and samples with a
vLLM server.

This environment has DeepSpeed; the one of the other tests has not.
"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from grpo_ext import load_recipe
from grpo_ext.cli.main import main
from grpo_ext.vllm.server import server_of
from tests.support.engine_parts import free_port, outside, words
from tests.support.forked import LIMIT
from tests.support.sharded_run import check_same, launched, ten_steps

pytestmark = pytest.mark.vllm


def test_two_ranks_of_zero_learn_what_one_does(tiny_folder, tmp_path):
    one = ten_steps(tiny_folder, tmp_path, "plain", 1)
    for how, share in (("zero2", 1.0), ("zero3", 0.5)):
        check_same(one, ten_steps(tiny_folder, tmp_path, how, 2), share)


@pytest.mark.parametrize("how", ["zero2", "zero3"])
def test_steps_without_a_finite_gradient_are_left_out_on_all_ranks(tiny_folder, tmp_path, how):
    launched(how, 2, tmp_path, "guard", str(tiny_folder))


def twice(path, run, steps, close):
    """A recipe's run, and once more from its checkpoint of step 2.

    What of the second is not as in the first is told.
    """
    found = []
    for begins in ("Starting without a checkpoint", "Resuming from"):
        out = launched(
            "zero3", 2, path.parent, "train", "--config", str(path), environment=outside()
        )
        assert "2 ranks (DEEPSPEED, gloo), sharded by DeepSpeed ZeRO-3" in out and begins in out
        state = json.loads((run / "trainer_state.json").read_text())
        logged = [entry for entry in state["log_history"] if "loss" in entry]
        assert len(logged) == steps and logged[1]["kl"] > 0
        assert max(entry[f"sampling/{close}"] for entry in logged) <= 1e-5
        found.append((load_file(run / "model.safetensors"), [entry["loss"] for entry in logged]))
        for checkpoint in run.glob("checkpoint-*"):
            if checkpoint.name != "checkpoint-2":
                shutil.rmtree(checkpoint)
        (run / "model.safetensors").unlink()
    return found


OPTIONS = {
    "max_steps": 4,
    "learning_rate": 1e-2,
    "save_strategy": "steps",
    "save_steps": 2,
    "beta": 0.04,
}


def test_zero3_goes_on_from_its_checkpoint_bit_for_bit(engine_folder, tmp_path):
    options = {
        **OPTIONS,
        "use_vllm": False,
        "vllm_max_model_length": None,
        "group_filter": "refill",
    }
    path = words(engine_folder, tmp_path, 2, **options)
    (weights, losses), (again, losses_again) = twice(path, tmp_path / "2", 4, "logp_difference/max")
    assert losses == losses_again
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_zero3_beside_a_server_goes_on_from_its_checkpoint(engine_folder, tmp_path):
    """To rounding: vLLM runs requests together as they come, so that log-probs of the same tokens
    differ in their last bits.
    """
    where = {
        "vllm_mode": "server",
        "vllm_server_host": "127.0.0.1",
        "vllm_server_port": free_port(),
    }
    options = {
        **OPTIONS,
        "group_filter": "refill",
        "generation_kwargs": {"seed": 1},
        "vllm_group_port": free_port(),
    }
    path = words(engine_folder, tmp_path, 2, **where, **options)
    with server_of(load_recipe(path)).running(seconds=LIMIT, restarts=0):
        (_, losses), (_, again) = twice(path, tmp_path / "2", 4, "logp_difference/max")
    assert losses == pytest.approx(again, abs=1e-5) and losses[3] != pytest.approx(
        losses[2], abs=1e-5
    )


def test_an_adapter_that_was_trained_in_parts_is_merged(engine_folder, tmp_path):
    options = {
        "use_vllm": False,
        "vllm_max_model_length": None,
        "use_peft": True,
        "lora_target_modules": ["q_proj", "v_proj"],
    }
    path = words(engine_folder, tmp_path, 2, max_steps=2, **options)
    launched("zero3", 2, tmp_path, "train", "--config", str(path), environment=outside())
    assert main(["merge", "--model", str(tmp_path / "2")]) == 0
    assert (tmp_path / "2" / "merged" / "model.safetensors").exists()
