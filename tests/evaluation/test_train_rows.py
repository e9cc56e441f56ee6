"""An evaluation on training rows says what training will find, and its completions start a
curriculum.
"""

from __future__ import annotations

import json
import math
import statistics

import pytest

from grpo_ext.cli.main import main
from grpo_ext.evaluation.evaluate_recipe import rows_and_rewards
from grpo_ext.recipe.load import load_recipe
from grpo_ext.train import make_trainer
from tests.support.logs import metric_values

PLUGIN = '''
from grpo_ext import register

@register("lottery")
def lottery(completions, target):
    """Right by chance, the more often the larger the last digit of the target."""
    return [float(sum(map(ord, text)) * 7 % 10 < n % 10) for text, n in zip(completions, target)]
'''
RECIPE = """
task: countdown
num_problems: 400
min_numbers: 3
max_numbers: 3
max_number: 12
max_target: 36
operators: "+-"
reward_funcs: [lottery, format]
reward_weights: [1.0, 0.25]
num_generations: 4
per_device_train_batch_size: 64
max_completion_length: 12
max_steps: 20
learning_rate: 1.0e-6
use_cpu: true
bf16: false
gradient_checkpointing: false
report_to: none
logging_steps: 1
save_strategy: "no"
disable_tqdm: true
"""


def test_a_file_without_held_out_rows_has_training_rows(tmp_path):
    rows = tmp_path / "rows.jsonl"
    recipe = tmp_path / "recipe.yaml"
    rows.write_text(
        "".join(
            json.dumps({"question": f"1 + {n}?", "solution": str(1 + n)}) + "\n" for n in range(9)
        )
    )
    recipe.write_text(
        f"task: prompts\n"
        f"dataset_name: {rows}\n"
        f"user_prompt: '{{question}}'\n"
        f"reward_funcs: [accuracy]\n"
        f"eval_strategy: 'no'\n"
        f"model_name_or_path: {tmp_path}\n"
        f"output_dir: {tmp_path / 'run'}\n"
        f"use_cpu: true\n"
        f"num_generations: 2\n"
    )
    found, rewards = rows_and_rewards(load_recipe(recipe), 4)
    assert len({row["solution"] for row in found}) == 4 and list(rewards) == ["accuracy"]
    with pytest.raises(ValueError, match="no held-out rows"):
        rows_and_rewards(load_recipe(recipe))


@pytest.mark.slow
def test_the_predicted_share_is_what_training_shows(tiny_folder, tmp_path, capsys):
    (tmp_path / "plugin.py").write_text(PLUGIN)
    recipe = tmp_path / "recipe.yaml"
    rates = tmp_path / "rates.json"
    places = (
        f"model_name_or_path: {tiny_folder}\n"
        f"output_dir: {tmp_path / 'run'}\n"
        f"reward_plugins: [{tmp_path / 'plugin.py'}]\n"
    )
    recipe.write_text(places + RECIPE)
    words = [
        "--train_rows",
        "256",
        "--num_samples",
        "4",
        "--batch_size",
        "512",
        "--output",
        str(rates),
    ]
    assert main(["eval", "--config", str(recipe), *words]) == 0
    printed = capsys.readouterr().out
    assert "256 rows" in printed
    assert "Best num_generations for these rows: " in printed
    sampled = json.loads(rates.read_text())["sampled"]
    size = json.loads(rates.read_text())["best_num_generations"]
    assert size["low"] <= size["best"] <= size["high"]
    assert size["efficiency"].keys() == {"2", "3", "4"}

    trainer = make_trainer(load_recipe(recipe))
    trainer.train()
    shown = metric_values(trainer, "groups/mixed")
    assert len(shown) == 20
    share = statistics.mean(shown)
    error = math.sqrt(share * (1 - share) / (20 * 16) + sampled["mixed@4_se"] ** 2)
    assert abs(share - sampled["mixed@4"]) < 3 * error < 0.25

    file = str(tmp_path / "rates_completions.jsonl")
    hard = make_trainer(load_recipe(recipe, {"curriculum": "adaptive", "pass_rates_file": file}))
    counts = hard.parts.order.rates.state_dict()
    assert set(counts["samples"]) == {0, 4} and sum(counts["samples"]) == 256 * 4
    assert sum(counts["right"]) / 1024 == pytest.approx(sampled["pass@1"])
