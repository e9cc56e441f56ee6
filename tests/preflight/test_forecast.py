"""The plan as the command prints it, and sizes against a real model and its real checkpoint."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM

from grpo_ext import load_recipe
from grpo_ext.cli.main import main
from grpo_ext.preflight.forecast import make_forecast
from grpo_ext.recipe.memory import checkpoint_bytes

VALUES = {
    "use_cpu": True,
    "bf16": False,
    "num_problems": 40,
    "max_numbers": 3,
    "max_number": 9,
    "max_completion_length": 4,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_steps": 2,
    "save_steps": 1,
    "report_to": "none",
    "gradient_checkpointing": False,
}


def test_a_forecast_counts_rows_and_weights(tiny_folder):
    recipe = load_recipe(None, {**VALUES, "model_name_or_path": str(tiny_folder)})
    forecast = make_forecast(recipe)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    assert (
        forecast.size.parameters
        == forecast.size.trainable
        == sum(p.numel() for p in model.parameters())
    )
    assert forecast.plan.rows == 40
    assert (
        forecast.memory["weights"] == forecast.memory["gradients"] == 4 * forecast.size.parameters
    )
    assert forecast.memory["optimizer"] == 8 * forecast.size.parameters
    assert forecast.prompt_tokens > 10


def test_plan_prints_the_longest_completion_that_fits_into_a_gpu(tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({**VALUES, "model_name_or_path": "Qwen/Qwen2.5-1.5B"}))
    longest = {}
    for gpu in ("a100", "h200"):
        assert main(["plan", "--config", str(path), "--gpu", gpu, "--json"]) == 0
        longest[gpu] = json.loads(capsys.readouterr().out)["longest_completion"]
        assert main(["plan", "--config", str(path), "--gpu", gpu]) == 0
        assert f"{longest[gpu]:,} tokens on a GPU of" in capsys.readouterr().out
    assert 0 < longest["a100"] < longest["h200"]
    assert main(["plan", "--config", str(path), "--json"]) == 0
    assert "longest_completion" not in json.loads(capsys.readouterr().out)


def test_plan_without_the_size_of_a_model_prints_no_longest_completion(tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({**VALUES, "model_name_or_path": str(tmp_path / "nowhere")}))
    assert main(["plan", "--config", str(path), "--gpu", "h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["longest_completion"] is None
    assert main(["plan", "--config", str(path), "--gpu", "h100"]) == 0
    out = capsys.readouterr().out
    assert "config cannot be read here" in out and "longest completion" not in out


def test_an_adapter_is_counted_as_peft_counts_it(tiny_folder):
    from peft import LoraConfig, get_peft_model

    lora = {"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj", "v_proj"]}
    forecast = make_forecast(
        load_recipe(None, {**VALUES, **lora, "model_name_or_path": str(tiny_folder)})
    )
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_folder), config)
    assert forecast.size.trainable == model.get_nb_trainable_parameters()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"save_only_model": True},
        {"use_peft": True, "lora_target_modules": ["q_proj", "v_proj"]},
    ],
)
def test_a_checkpoint_is_as_big_as_said(tiny_folder, tmp_path, extra):
    from grpo_ext.train import make_trainer

    recipe = load_recipe(
        None,
        {
            **VALUES,
            **extra,
            "model_name_or_path": str(tiny_folder),
            "output_dir": str(tmp_path),
            "beta": 0,
        },
    )
    expected = make_forecast(recipe)
    make_trainer(recipe).train()
    saved = sorted(tmp_path.glob("checkpoint-*"))
    assert len(saved) == len(expected.plan.checkpoints) == 2
    files = [
        f for f in saved[0].iterdir() if f.suffix == ".safetensors" or f.name == "optimizer.pt"
    ]
    assert sum(f.stat().st_size for f in files) == pytest.approx(
        checkpoint_bytes(expected.size, recipe.flat), rel=0.1, abs=20_000
    )


def test_the_command_prints_it(tiny_folder, tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    lines = [f"{key}: {json.dumps(value)}" for key, value in VALUES.items()]
    path.write_text("\n".join([*lines, f"model_name_or_path: {tiny_folder}"]))
    assert main(["plan", "--config", str(path), "--num_processes", "2", "--rows", "100"]) == 0
    out = capsys.readouterr().out
    assert "4 prompts x 4 completions, at most 64 tokens" in out
    assert "100 rows, 25 steps, 25 generations, 0 rows dropped" in out
    assert main(["plan", "--config", str(path), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["steps"], plan["rows"], plan["checkpoints"]) == (2, 40, [1, 2])
    assert main(["plan", "--config", str(path), "--num_generations", "5"]) == 2
    assert capsys.readouterr().err.count("`") == 6  # three settings that fit
