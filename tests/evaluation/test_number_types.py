"""Commands and evaluations sample in the number types in which a run samples."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from grpo_ext import GRPOExtTrainer, load_recipe
from grpo_ext.evaluation import evaluate_recipe
from grpo_ext.evaluation.run_precision import precision_of
from grpo_ext.preflight import play_recipe, sample_completions
from grpo_ext.recipe.problems import Findings
from grpo_ext.run.from_recipe import model_init_kwargs, train_rows
from grpo_ext.samplers import choose
from grpo_ext.seams.precision import Precision
from tests.support.episode_run import WORLD
from tests.support.logs import write_json_rows

TYPES = [{"dtype": "bfloat16", "bf16": False}, {"dtype": "float32", "bf16": True}]


class Watched:
    """The number types of a model's passes: what a layer multiplies and adds up, and the logits."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, torch.dtype]] = set()

    def watch(self, model):
        """Watch a model from now on, and return it."""
        layer = model.model.layers[0]
        for name, module in (("product", layer.mlp.up_proj), ("sum", layer)):
            module.register_forward_hook(self._hook(name))
        model.register_forward_hook(
            lambda _, inputs, output: self.seen.add(("logits", output.logits.dtype))
        )
        return model

    def _hook(self, name):
        def note(_, inputs, output):
            tensor = output if isinstance(output, torch.Tensor) else output[0]
            self.seen.add((name, tensor.dtype))

        return note


EXPECTED = {("product", torch.bfloat16), ("sum", torch.float32), ("logits", torch.float32)}


def make_recipe(folder, model, **types):
    prompts = [[{"role": "user", "content": f"Play game {n}."}] for n in range(4)]
    write_json_rows(folder / "rows.jsonl", [{"prompt": prompt} for prompt in prompts])
    settings = {
        "model_name_or_path": str(model),
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "report_to": "none",
        "task": "prompts",
        "dataset_name": str(folder / "rows.jsonl"),
        "environment": WORLD,
        "reward_funcs": [{"name": "environment"}],
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 40,
        "eval_temperature": 0.0,
        **types,
    }
    return load_recipe(None, settings)


@pytest.fixture(params=TYPES, ids=["weights", "autocast"])
def recipe(request, tiny_folder, tmp_path):
    return make_recipe(tmp_path, tiny_folder, **request.param)


@pytest.mark.parametrize("way", ["play", "check", "eval"])
def test_commands_sample_in_the_types_of_a_run(recipe, tiny_folder, monkeypatch, way):
    watched = Watched()
    for module in (sample_completions, play_recipe, evaluate_recipe):
        load = module.load_model
        monkeypatch.setattr(
            module, "load_model", lambda *args, load=load: watched.watch(load(*args))
        )
    rows = list(train_rows(recipe))
    if way == "play":
        play_recipe.begin_game(recipe).play_by_model()
    elif way == "check":
        tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
        sample_completions.try_rewards_on_samples(recipe, [], rows, tokenizer, 2, Findings())
    else:
        _, rewards = evaluate_recipe.rows_and_rewards(recipe, 1)
        evaluate_recipe.evaluate_on(recipe, str(tiny_folder), rows, rewards, num_samples=0)
    assert watched.seen == EXPECTED


def test_an_evaluation_in_training_samples_in_the_types_of_its_run(recipe, tiny_folder):
    recipe.training.model_init_kwargs = model_init_kwargs(recipe)
    rows = train_rows(recipe)
    trainer = GRPOExtTrainer(str(tiny_folder), ["environment"], recipe.training, rows)
    model = trainer.accelerator.unwrap_model(trainer.model)
    assert choose.precision_of(trainer) == precision_of(recipe, model)
    watched = Watched()
    watched.watch(model)
    trainer.evaluate(rows)
    assert watched.seen == EXPECTED


def test_float16_on_a_cpu_is_used_neither_in_a_run_nor_in_commands(tiny_folder, tmp_path):
    recipe = make_recipe(tmp_path, tiny_folder, dtype="float32", fp16=True)
    recipe.training.model_init_kwargs = model_init_kwargs(recipe)
    rows = train_rows(recipe)
    trainer = GRPOExtTrainer(str(tiny_folder), ["environment"], recipe.training, rows)
    model = trainer.accelerator.unwrap_model(trainer.model)
    assert trainer.accelerator.scaler is None
    assert choose.precision_of(trainer) == precision_of(recipe, model) == Precision()
