"""Every recipe trains for two steps on a tiny model, with nothing but model, data and sizes
replaced.
"""

from __future__ import annotations

import math
import runpy
import shutil

import pytest
from trl.chat_template_utils import qwen2_5_chat_template

from grpo_ext import load_recipe
from grpo_ext.cli.main import main
from grpo_ext.recipe.load import load_sft_recipe
from grpo_ext.sft import make_trainer as make_sft_trainer
from grpo_ext.train import make_trainer
from tests.support.logs import metric_values
from tests.support.places import REPO
from tests.support.recipe_sizes import RECIPES, SIZES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_two_steps(path, tiny_folder, tmp_path):
    if path.parent.name == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    folder = tiny_folder
    if path.name.startswith("check-"):  # a tool needs a template that knows tools
        folder = tmp_path / "model"
        shutil.copytree(tiny_folder, folder)
        (folder / "chat_template.jinja").write_text(qwen2_5_chat_template)
    recipe = load_recipe(
        path, {**SIZES, "model_name_or_path": str(folder), "output_dir": str(tmp_path)}
    )
    trainer = make_trainer(recipe)
    stated = load_recipe(path)
    for key in (
        "loss_type",
        "beta",
        "num_generations",
        "temperature",
        "top_p",
        "top_k",
        "num_iterations",
        "learning_rate",
    ):
        assert getattr(trainer.args, key) == stated.get(key), key
    trainer.train()
    losses = metric_values(trainer, "loss")
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)


def test_the_supervised_stage_of_verse_trains_and_merges(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(REPO / "examples" / "poem_demonstrations.py"))
    recipe = load_sft_recipe(
        REPO / "recipes" / "poem" / "qwen2.5-7b-lora-sft.yaml",
        {
            "model_name_or_path": str(tiny_folder),
            "max_steps": 1,
            "per_device_train_batch_size": 2,
            "use_cpu": True,
            "bf16": False,
            "dtype": "float32",
            "gradient_checkpointing": False,
            "disable_tqdm": True,
        },
    )
    trainer = make_sft_trainer(recipe)
    trainer.train()
    [loss] = metric_values(trainer, "loss")
    assert math.isfinite(loss)
    trainer.save_model()
    assert main(["merge", "--model", recipe.get("output_dir")]) == 0
    merged = load_recipe(REPO / "recipes" / "poem" / "qwen2.5-7b-lora.yaml").get(
        "model_name_or_path"
    )
    assert (tmp_path / merged / "config.json").is_file()


def test_a_streamed_data_set_trains_too(tiny_folder, tmp_path):
    settings = {
        **SIZES,
        "model_name_or_path": str(tiny_folder),
        "output_dir": str(tmp_path),
        "dataset_streaming": True,
    }
    trainer = make_trainer(
        load_recipe(
            REPO / "recipes" / "countdown" / "tiny.yaml", {**settings, "eval_strategy": "no"}
        )
    )
    trainer.train()
    assert trainer.state.global_step == 2
