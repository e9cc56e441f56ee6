"""The plan as the command prints it, and sizes against a real model and its real checkpoint."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM

from grpo_ext import load_recipe
from grpo_ext.cli.main import main
from grpo_ext.preflight.forecast import make_forecast
from grpo_ext.recipe.difference import as_yaml
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
        printed = capsys.readouterr().out
        assert f"{longest[gpu]:,} tokens, with one completion per micro-batch" in printed
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


def held_out(tiny_folder, tmp_path, **values):
    path = tmp_path / "recipe.yaml"
    evaluated = {"eval_strategy": "steps", "eval_steps": 1, "max_eval_samples": 10}
    recipe = {**VALUES, **evaluated, "model_name_or_path": str(tiny_folder), **values}
    path.write_text(json.dumps(recipe))
    return str(path)


@pytest.mark.parametrize("command", ["plan", "check"])
def test_evaluations_that_outweigh_training_are_noted(tiny_folder, tmp_path, capsys, command):
    path = held_out(tiny_folder, tmp_path)
    assert main([command, "--config", path]) == 0
    out = capsys.readouterr().out
    assert (
        "evaluations of the run (2) generate 80 completions in total, more than its training (16)"
    ) in out
    assert main([command, "--config", path, "--max_eval_samples", "2"]) == 0
    assert "more than its training" not in capsys.readouterr().out


def test_plan_and_check_name_the_evaluation_batch(tiny_folder, tmp_path, capsys):
    path = held_out(tiny_folder, tmp_path)
    recipe = load_recipe(path)
    size = make_forecast(recipe).eval_batch_size
    assert size >= 8 and size % 4 == 0
    assert main(["plan", "--config", path]) == 0
    assert f"2, 40 completions each, {size} at once" in capsys.readouterr().out
    assert main(["check", "--config", path]) == 0
    assert f"in batches of {size} completions per process" in capsys.readouterr().out
    assert main(["plan", "--config", path, "--model_name_or_path", "no/where"]) == 0
    assert "40 completions each, in batches that the run chooses" in capsys.readouterr().out


def test_plan_says_how_long_a_run_takes_by_its_log(tiny_folder, tmp_path, capsys):
    folder = tmp_path / "run"
    path = held_out(tiny_folder, tmp_path, output_dir=str(folder), max_steps=4, save_steps=2)
    assert main(["plan", "--config", path]) == 0
    assert "not measured yet: `grpo-ext bench` measures" in capsys.readouterr().out

    folder.mkdir()
    recipe = load_recipe(path)
    (folder / "recipe.yaml").write_text(as_yaml(recipe.flat))
    steps = [
        {"time/train": 90.0, "time/generation": 9.0},  # slower than the others
        {"time/train": 4.0, "time/generation": 6.0, "time/evaluation": 5.0},
        {"time/train": 4.0, "time/generation": 8.0, "time/checkpoint": 7.0},
    ]
    rows = [{"step": i + 1, **row} for i, row in enumerate(steps)]
    rows.insert(1, {"step": 1, "eval_runtime": 20.0})
    rows.insert(3, {"step": 2, "eval_runtime": 22.0, "eval_reward": "\x1b[31m"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["plan", "--config", path]) == 0
    out = capsys.readouterr().out
    expected = 4 * 11 + 4 * 21 + 2 * 7
    assert f"about 2 min, according to the log in {folder}:" in out
    assert "4 steps of 11 s, 4 evaluations of 21 s, 2 saves of 7 s" in out
    assert main(["plan", "--config", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hours"] == pytest.approx(expected / 3600)

    # a longer run takes the same seconds for each step; another recipe does not
    assert main(["plan", "--config", path, "--max_steps", "400"]) == 0
    assert "400 steps of 11 s" in capsys.readouterr().out
    assert main(["plan", "--config", path, "--max_completion_length", "64"]) == 0
    assert "not measured yet" in capsys.readouterr().out
