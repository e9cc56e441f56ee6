"""The plan of two ranks is what two ranks do."""

from __future__ import annotations

import json

import pytest
import yaml

from grpo_ext import load_recipe
from grpo_ext.preflight.forecast import make_forecast
from grpo_ext.train import main as train
from tests.support.forked import on_ranks

VALUES = {
    "accelerate_config": "cpu",
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "task": "countdown",
    "num_problems": 23,
    "max_numbers": 3,
    "max_number": 9,
    "reward_funcs": [
        "countdown",
        "format",
        {"name": "length", "target": 1, "unit": "characters"},
    ],
    "per_device_train_batch_size": 3,
    "num_generations": 6,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 3,
    "num_iterations": 2,
    "num_train_epochs": 0.5,
    "warmup_steps": 0.2,
    "max_completion_length": 4,
    "save_steps": 4,
    "logging_steps": 1,
}


@pytest.mark.slow
def test_two_ranks_take_the_steps_of_the_plan(tiny_folder, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        yaml.safe_dump(
            {**VALUES, "model_name_or_path": str(tiny_folder), "output_dir": str(tmp_path / "run")}
        )
    )
    on_ranks(2, train, ["--config", str(path)])
    plan = make_forecast(load_recipe(path, num_processes=2), num_processes=2).plan
    assert (plan.batch.prompts, plan.batch.completions, plan.rows_dropped) == (3, 18, 2)
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    assert (state["global_step"], state["max_steps"]) == (plan.steps, plan.steps)
    assert state["epoch"] == pytest.approx(plan.epochs)
    saved = sorted(
        int(folder.name.partition("-")[2]) for folder in (tmp_path / "run").glob("checkpoint-*")
    )
    assert tuple(saved) == plan.checkpoints
    rates = [entry["learning_rate"] for entry in state["log_history"] if "learning_rate" in entry]
    assert len(rates) == plan.steps
    # the rate of the first step after warm-up is the highest
    assert rates.index(max(rates)) == plan.warmup_steps
