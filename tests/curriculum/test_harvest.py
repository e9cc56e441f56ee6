"""Good completions are kept once each, through resumes, and supervised training reads them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from conftest import REPO

from grpo_ext.curriculum.harvest import Harvest
from grpo_ext.recipe.load import load_recipe, load_sft_recipe
from grpo_ext.recipe.problems import RecipeError


def sample(step, prompt, text, reward, mode="train"):
    chat = [{"role": "user", "content": prompt}]
    return {
        "step": step,
        "mode": mode,
        "prompt_id": prompt,
        "prompt": chat,
        "text": text,
        "rewards": {"solved": reward},
    }


def began(folder, step=0, **options):
    harvest = Harvest("solved", **options)
    state = SimpleNamespace(is_world_process_zero=True, global_step=step)
    harvest.on_train_begin(SimpleNamespace(output_dir=str(folder)), state, None)
    return harvest


def texts(path):
    return [json.loads(line)["completion"][0]["content"] for line in path.read_text().splitlines()]


def test_what_is_good_is_kept_once_and_not_too_often(tmp_path):
    harvest = began(tmp_path, max_per_prompt=2)
    harvest.on_samples([sample(1, "a", "x", 1.0), sample(1, "a", "x", 1.0), sample(1, "a", "no", 0.9)])
    harvest.on_samples([sample(2, "a", "y", 1.0), sample(2, "a", "z", 1.0), sample(2, "b", "x", 2.0)])
    harvest.on_samples([sample(3, "b", "unscored", None), sample(3, "b", "held out", 1.0, mode="eval")])
    path = tmp_path / "harvest.jsonl"
    assert texts(path) == ["x", "y", "x"]
    assert json.loads(path.read_text().splitlines()[2])["reward"] == 2.0
    resumed = began(tmp_path, step=1, max_per_prompt=2)  # steps after the first are lived again
    assert texts(path) == ["x"]
    resumed.on_samples([sample(2, "a", "x", 1.0), sample(2, "a", "w\n\ud800", 1.0), sample(2, "a", "v", 1.0)])
    assert texts(path) == ["x", "w\n\ud800"]
    began(tmp_path)
    assert not path.exists() and texts(tmp_path / "harvest.1.jsonl") == ["x", "w\n\ud800"]


@pytest.mark.parametrize(
    "given, words",
    [
        ("{min_rewards: 1}", "got 'min_rewards'. Did you mean 'min_reward'?"),
        ("{max_per_prompt: 0}", "max_per_prompt must be at least 1"),
        ("{path: 3}", "path is text; got 3"),
    ],
)
def test_recipes_say_what_is_wrong_with_a_harvest(given, words):
    with pytest.raises(RecipeError, match=words.replace("?", r"\?")):
        load_recipe(REPO / "recipes/countdown/tiny.yaml", ["--harvest", given])


PLUGIN = '''
from grpo_ext import register

@register("even")
def even(completions):
    """Whether a completion has an even number of characters."""
    return [float(len(text) % 2 == 0) for text in completions]
'''


@pytest.mark.slow
def test_supervised_training_reads_what_a_run_harvested(tiny_folder, tmp_path):
    from grpo_ext.sft import make_trainer as make_sft_trainer
    from grpo_ext.train import make_trainer

    (tmp_path / "plugin.py").write_text(PLUGIN)
    small = {"max_steps": 2, "eval_strategy": "no", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    given = {
        "model_name_or_path": str(tiny_folder),
        "output_dir": str(tmp_path / "grpo"),
        "harvest": {"max_per_prompt": 2},
    }
    given |= {"reward_plugins": [str(tmp_path / "plugin.py")], "reward_funcs": ["format", "even"], "num_problems": 32}
    given |= {"reward_weights": [0.1, 1.0], "per_device_train_batch_size": 16, "max_completion_length": 8}
    make_trainer(load_recipe(REPO / "recipes/countdown/tiny.yaml", {**given, **small})).train()
    path = tmp_path / "grpo" / "harvest.jsonl"
    found = texts(path)
    assert found and all(len(text) % 2 == 0 for text in found)
    given = {"model_name_or_path": str(tiny_folder), "dataset_name": str(path), "output_dir": str(tmp_path / "sft")}
    trainer = make_sft_trainer(
        load_sft_recipe(REPO / "recipes/countdown/tiny-harvest-sft.yaml", {**given, **small, "max_steps": 2})
    )
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert any((p != before[name]).any() for name, p in trainer.model.named_parameters())
