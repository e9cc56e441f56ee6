"""Real runs on data that has only training rows: no completion of training is of a held-out row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_ext.cli.main import main
from grpo_ext.evaluation.evaluate_recipe import rows_and_rewards
from grpo_ext.recipe.load import load_recipe
from grpo_ext.run.from_recipe import eval_rows, has_eval_rows
from grpo_ext.tasks.countdown import Countdown
from grpo_ext.train import main as train
from grpo_ext.train import make_trainer

PLUGIN = '''
from grpo_ext import register

@register("lottery")
def lottery(completions, target):
    """Right by chance."""
    return [float(sum(map(ord, text)) * 7 % 10 < n % 10) for text, n in zip(completions, target)]
'''
COUNT = 60  # rows
Problem = tuple[tuple[int, ...], int]


def problem_of(row: dict) -> Problem:
    return (*sorted(row["nums"]),), row["target"]


@pytest.fixture
def values(tiny_folder, tmp_path) -> dict:
    rows = list(
        Countdown(num_problems=COUNT, min_numbers=3, max_numbers=3, max_number=12).generate("train")
    )
    data = tmp_path / "rows.jsonl"
    data.write_text(
        "".join(json.dumps({**row, "hard": n % 7}) + "\n" for n, row in enumerate(rows))
    )
    (tmp_path / "plugin.py").write_text(PLUGIN)
    return {
        "model_name_or_path": str(tiny_folder),
        "task": "countdown",
        "dataset_name": str(data),
        "held_out_share": 0.2,
        "reward_plugins": [str(tmp_path / "plugin.py")],
        "reward_funcs": ["lottery", "countdown"],
        "reward_weights": [1.0, 0.1],
        "num_generations": 2,
        "per_device_train_batch_size": 16,
        "max_completion_length": 6,
        "max_steps": 8,
        "learning_rate": 1e-6,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "output_dir": str(tmp_path / "run"),
    }


def problems_seen(folder: Path, mode: str = "train") -> set[Problem]:
    """The problems of all completions that a run has written."""
    with (folder / "samples.jsonl").open() as file:
        lines = list(map(json.loads, file))
    assert lines
    return {problem_of(line["columns"]) for line in lines if line["mode"] == mode}


def test_two_runs_and_an_evaluation_agree_on_what_is_held_out(values, tmp_path):
    held_out = {problem_of(row) for row in eval_rows(load_recipe(None, values))}
    assert 4 <= len(held_out) <= 22
    others = set()
    evaluation = {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 16}
    data = Path(values["dataset_name"])
    for seed in (1, 2):
        folder = tmp_path / f"run{seed}"
        more = {"seed": seed, "output_dir": str(folder), **evaluation}
        recipe = load_recipe(None, values | more)
        make_trainer(recipe).train()
        assert problems_seen(folder, "eval") == held_out
        assert {problem_of(row) for row in rows_and_rewards(recipe)[0]} == held_out
        others |= problems_seen(folder)
        data.write_text("".join(reversed(data.read_text().splitlines(keepends=True))))
    assert len(others) == COUNT - len(held_out)
    assert not others & held_out


@pytest.mark.parametrize(
    "more",
    [
        {"group_filter": "refill"},
        {"group_filter": "refill", "max_staleness": 1},
        {"curriculum": "adaptive"},
        {"curriculum": "easy_to_hard", "difficulty_column": "hard", "group_filter": "drop"},
    ],
    ids=str,
)
def test_refill_and_curriculum_draw_no_held_out_row(values, more):
    recipe = load_recipe(None, values | more)
    held_out = {problem_of(row) for row in eval_rows(recipe)}
    make_trainer(recipe).train()
    seen = problems_seen(recipe.output_dir)
    assert len(seen) > 20 and not seen & held_out


def test_a_resumed_run_draws_none_either_and_another_share_is_another_run(values, tmp_path, capsys):
    path = tmp_path / "recipe.json"  # JSON is YAML
    path.write_text(
        json.dumps(values | {"save_strategy": "steps", "save_steps": 2, "max_steps": 3})
    )
    held_out = {problem_of(row) for row in eval_rows(load_recipe(path))}
    assert train(["--config", str(path)]) == 0
    first = problems_seen(tmp_path / "run")
    resumed = str(tmp_path / "run" / "checkpoint-2")
    assert train(["--config", str(path), "--resume", resumed, "--max_steps", "8"]) == 0
    seen = problems_seen(tmp_path / "run")
    assert first < seen and len(seen) > 40
    assert not seen & held_out
    capsys.readouterr()
    assert train(["--config", str(path), "--max_steps", "9", "--held_out_share", "0.1"]) == 2
    assert "held_out_share: 0.2  ->  0.1" in capsys.readouterr().err


def test_an_evaluation_without_rows_ends_before_the_model_is_loaded(values, tmp_path, capsys):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(values | {"eval_strategy": "steps", "eval_steps": 1}))
    for share, message in (
        ("null", "has no held-out rows: set held_out_share"),
        ("1e-9", "holds out none"),
    ):
        words = ["--config", str(path), "--held_out_share", share]
        assert train(words) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "samples.jsonl").exists()


def test_eval_compares_models_on_the_held_out_rows(values, tmp_path, capsys):
    path = tmp_path / "recipe.json"
    output = tmp_path / "figures.json"
    path.write_text(json.dumps(values))
    words = ["eval", "--config", str(path), "--num_samples", "0", "--output", str(output)]
    assert main(words) == 0
    held_out = {problem_of(row) for row in eval_rows(load_recipe(path))}
    with (tmp_path / "figures_completions.jsonl").open() as file:
        assert {problem_of(json.loads(line)) for line in file} == held_out
    assert f"{len(held_out)} rows" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{}", "[]", '{"splits": 3}'])
def test_a_damaged_list_of_splits_is_named(values, tmp_path, text):
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "dataset_dict.json").write_text(text)
    changed = {**values, "dataset_name": str(folder), "held_out_share": None}
    with pytest.raises(ValueError, match=r"dataset_dict\.json has no list of splits"):
        has_eval_rows(load_recipe(None, changed))
