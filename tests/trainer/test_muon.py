"""`muon: true` in a GRPO recipe: the optimizer that trains, and goes on from a checkpoint."""

from __future__ import annotations

import torch

from grpo_ext import load_recipe
from grpo_ext.tiny.optimizer import MuonWithAdamW
from grpo_ext.train import make_trainer
from tests.support.places import REPO

SETTINGS = {
    "reward_funcs": ["format"],
    "reward_weights": [1.0],
    "muon": True,
    "weight_decay": 0.1,
    "learning_rate": 1e-2,
    "entropy_coef": 0.1,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 8,
    "num_problems": 64,
    "max_steps": 4,
    "warmup_steps": 0,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_total_limit": 9,
    "eval_strategy": "no",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "report_to": "none",
}


def run(folder, out, resume=None):
    recipe = REPO / "recipes" / "countdown" / "tiny.yaml"
    trainer = make_trainer(
        load_recipe(recipe, {**SETTINGS, "model_name_or_path": str(folder), "output_dir": str(out)})
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_muon_trains_and_goes_on(tiny_folder, tmp_path):
    straight = run(tiny_folder, tmp_path / "run")
    optimizer = straight.optimizer.optimizer
    assert isinstance(optimizer, MuonWithAdamW) and optimizer.param_groups[0]["weight_decay"] == 0.1
    again = run(tiny_folder, tmp_path / "again", str(tmp_path / "run" / "checkpoint-2"))
    for (name, a), (_, b) in zip(
        straight.model.named_parameters(), again.model.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name
