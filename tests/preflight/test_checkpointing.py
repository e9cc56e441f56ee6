"""Gradient checkpointing that nobody set: chosen by memory, the same in the plan and in the run."""

from __future__ import annotations

import json
import warnings

import pytest
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, MambaConfig, MambaForCausalLM

from grpo_ext import GRPOExtConfig, GRPOExtTrainer, load_recipe
from grpo_ext.cli.main import main
from grpo_ext.common import devices
from grpo_ext.preflight import checkpointing
from grpo_ext.preflight.checkpointing import Checkpointing
from grpo_ext.preflight.forecast import make_forecast
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.memory import ModelSize, memory_estimate
from grpo_ext.recipe.schema import CHECKPOINTING_KEYS
from tests.support.tiny_run import tiny_arguments, tiny_trainer

RECIPE = {
    "use_cpu": True,
    "num_problems": 40,
    "max_completion_length": 200,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_steps": 2,
    "report_to": "none",
}
SIZE = ModelSize(10**9, 10**9, "bfloat16", hidden_size=2048, num_hidden_layers=24, kv_width=512)


def values_and_batch(processes=1, **settings):
    values = load_recipe(None, {**RECIPE, "model_name_or_path": "none", **settings}).flat
    return values, batch_of(values, processes)


def choice(memory, processes=1, sharding=0, **settings):
    values, batch = values_and_batch(processes, **settings)
    return Checkpointing.choose(SIZE, values, batch, sharding=sharding, prompt=50, memory=memory).on


def test_half_of_the_memory_decides():
    values, batch = values_and_batch(gradient_checkpointing=False)
    needed = memory_estimate(SIZE, values, batch, prompt=50)["total"]
    assert choice(2 * needed - 2)
    assert not choice(2 * needed + 2)


def test_an_engine_on_the_same_device_leaves_less():
    values, batch = values_and_batch(gradient_checkpointing=False, use_vllm=True)
    needed = memory_estimate(SIZE, values, batch, prompt=50)["total"]
    colocated = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.75,
    }
    assert choice(8 * needed - 8, **colocated)
    assert not choice(8 * needed + 8, **colocated)
    assert not choice(2 * needed + 2, use_vllm=True, vllm_mode="server")


def test_processes_share_the_memory_of_a_cpu(monkeypatch):
    values, batch = values_and_batch(gradient_checkpointing=False)
    needed = memory_estimate(SIZE, values, batch, prompt=50)["total"]
    monkeypatch.setattr(checkpointing, "device_bytes", lambda use_cpu: 3 * needed)
    assert not choice(None)
    assert choice(None, processes=2)


def test_what_the_estimate_does_not_know_keeps_trls_default():
    assert choice(10**18, sharding=3)
    assert choice(10**18, loss_normalization="micro_batch")
    unlimited = {"use_vllm": True, "vllm_mode": "server", "max_completion_length": None}
    assert choice(10**18, **unlimited)
    values, batch = values_and_batch()
    unknown = Checkpointing.choose(SIZE, values, batch, sharding=0, prompt=None, memory=10**18)
    assert unknown.on


def test_streams_and_prompts_that_a_rollout_completes_keep_trls_default(tiny_folder, tmp_path):
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": "w8"}]] * 8})

    def reward(completions, **columns):
        return [float(len(text)) for text in completions]

    def rollout(prompts, trainer):
        raise AssertionError("nothing is generated here")

    args = tiny_arguments(tmp_path, max_steps=1)
    stream = tiny_trainer(tiny_folder, [reward], args, rows.to_iterable_dataset())
    assert stream.args.gradient_checkpointing is True
    without_template = AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")
    without_template.chat_template = None
    trainer = GRPOExtTrainer(
        model=str(tiny_folder),
        reward_funcs=[reward],
        args=tiny_arguments(tmp_path, max_steps=1),
        train_dataset=rows,
        processing_class=without_template,
        rollout_func=rollout,
    )
    assert trainer.args.gradient_checkpointing is True


def test_each_trainer_chooses_anew_from_the_same_arguments(tiny_folder, tmp_path, monkeypatch):
    rows = Dataset.from_dict({"prompt": ["w8 w9"] * 8})

    def reward(completions, **columns):
        return [float(len(text)) for text in completions]

    args = tiny_arguments(tmp_path)
    for memory, on in ((2**40, False), (2**20, True), (2**40, False)):
        monkeypatch.setattr(checkpointing, "device_bytes", lambda use_cpu, memory=memory: memory)
        trainer = tiny_trainer(tiny_folder, [reward], args, rows)
        assert trainer.args.gradient_checkpointing is on
        assert trainer.parts.checkpointing.on is on


def test_activations_in_float32_take_twice_the_memory():
    needed = {}
    for dtype in ("bfloat16", "float32"):
        values, batch = values_and_batch(gradient_checkpointing=False, bf16=False, dtype=dtype)
        needed[dtype] = memory_estimate(SIZE, values, batch)["activations"]
    assert needed["float32"] == 2 * needed["bfloat16"]
    tokens = 8 * 200
    assert needed["bfloat16"] == 34 * tokens * 2048 * 24


def test_a_container_limits_the_memory(tmp_path, monkeypatch):
    unlimited = devices.device_bytes(use_cpu=True)
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(devices, "CONTAINER_LIMITS", (limit, tmp_path / "none"))
    limit.write_text("max\n")
    assert devices.device_bytes(use_cpu=True) >= unlimited
    limit.write_text("1048576\n")
    assert devices.device_bytes(use_cpu=True) == 1048576


@pytest.mark.parametrize("memory, on", [(2**20, True), (2**40, False)])
@pytest.mark.parametrize("adapter", [False, True])
def test_the_trainer_does_what_the_plan_says(
    tiny_folder, tmp_path, monkeypatch, capsys, memory, on, adapter
):
    monkeypatch.setattr(checkpointing, "device_bytes", lambda use_cpu: memory)
    path = tmp_path / "recipe.yaml"
    recipe = {**RECIPE, "model_name_or_path": str(tiny_folder)}
    if adapter:
        recipe |= {"use_peft": True, "lora_r": 8, "lora_target_modules": "all-linear"}
    path.write_text(json.dumps(recipe))
    forecast = make_forecast(load_recipe(path))
    assert main(["plan", "--config", str(path)]) == 0
    assert str(forecast.checkpointing) in capsys.readouterr().out
    from grpo_ext.train import make_trainer

    recipe["output_dir"] = str(tmp_path / "out")
    trainer = make_trainer(load_recipe(None, recipe))
    assert trainer.args.gradient_checkpointing is on
    assert trainer.parts.checkpointing == forecast.checkpointing
    assert trainer.args.per_device_eval_batch_size == forecast.eval_batch_size
    trainer.train()
    assert str(forecast.checkpointing) in capsys.readouterr().out
    assert trainer.model.is_gradient_checkpointing is on


def test_transformers_does_not_warn_about_the_name_of_the_key(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        args = GRPOExtConfig(
            str(tmp_path),
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": True},
            use_cpu=True,
        )
    assert {getattr(args, key) for key in CHECKPOINTING_KEYS} == {True}
    assert args.gradient_checkpointing_kwargs == {"use_reentrant": True}


def test_what_the_user_set_stays(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "device_bytes", lambda use_cpu: 2**40)
    rows = Dataset.from_dict({"prompt": ["w8 w9"] * 8})

    def reward(completions, **columns):
        return [float(len(text)) for text in completions]

    for value in (True, False):
        args = tiny_arguments(tmp_path, gradient_checkpointing=value)
        trainer = tiny_trainer(tiny_folder, [reward], args, rows)
        assert trainer.args.gradient_checkpointing is value
        assert trainer.parts.checkpointing is None


def test_inputs_of_an_adapter_need_no_gradient_without_checkpointing(tiny_folder, tmp_path):
    rows = Dataset.from_dict({"prompt": ["w8 w9"] * 8})

    def reward(completions, **columns):
        return [float(len(text)) for text in completions]

    trainer = tiny_trainer(
        tiny_folder,
        [reward],
        tiny_arguments(tmp_path),
        rows,
        peft_config=LoraConfig(target_modules="all-linear"),
    )
    assert trainer.args.gradient_checkpointing is False
    embeddings = trainer.model.get_input_embeddings()
    ids = embeddings.weight.new_zeros((1, 1)).long()
    assert not embeddings(ids).requires_grad


def test_arguments_leave_the_choice_to_the_trainer(tmp_path):
    args = GRPOExtConfig(output_dir=str(tmp_path), report_to="none")
    assert [getattr(args, key) for key in CHECKPOINTING_KEYS] == [None] * len(CHECKPOINTING_KEYS)
    for key in CHECKPOINTING_KEYS:
        args = GRPOExtConfig(output_dir=str(tmp_path), report_to="none", **{key: True})
        assert args.gradient_checkpointing is True


def test_a_model_without_attention_keeps_trls_default(tiny_folder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")
    config = MambaConfig(
        vocab_size=len(tokenizer), hidden_size=16, state_size=4, num_hidden_layers=2
    )

    def reward(completions, **columns):
        return [float(len(text)) for text in completions]

    trainer = GRPOExtTrainer(
        model=MambaForCausalLM(config),
        reward_funcs=[reward],
        args=tiny_arguments(tmp_path, max_steps=1),
        train_dataset=Dataset.from_dict({"prompt": ["w8 w9"] * 8}),
        processing_class=tokenizer,
    )
    assert trainer.args.gradient_checkpointing is True
    trainer.train()
    assert trainer.state.global_step == 1
