"""Recipes of models other than the published experiments': their settings are the makers', they
pass the checks, need what they say, and train at tiny size.
"""

from __future__ import annotations

import json
import math
import re

import pytest
import yaml

from grpo_ext import load_recipe
from grpo_ext.cli.main import main
from grpo_ext.cli.plan import GPU_GIGABYTES
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.preflight.forecast import model_size
from grpo_ext.recipe.memory import cache_bytes, layer_bytes
from grpo_ext.rewards.registry import register
from grpo_ext.train import make_trainer
from tests.support.logs import metric_values, write_json_rows
from tests.support.model_families import (
    CLASSES,
    MAKERS,
    family_of,
    processor_of,
    save_tiny,
    tokenizer_of,
)
from tests.support.recipe_sizes import MODEL_RECIPES, SIZES

WHOLE = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None}
MATH_ROWS = [
    {"problem": f"What is ${number} + 1$?", "solution": f"It is $\\boxed{{{number + 1}}}$."}
    for number in range(64)
]


def sampling(recipe, prefix=""):
    return {key: recipe.get(f"{prefix}{key}") for key in WHOLE}


def settings_of_makers(recipe):
    """The makers' settings for the recipe's model, with or without thinking as it asks."""
    maker = MAKERS[family_of(recipe.get("model_name_or_path"))]
    if "thinking" not in maker:
        return maker["plain"]
    return maker["thinking" if recipe.get("chat_template_kwargs")["enable_thinking"] else "plain"]


def same(ours, makers):
    return {key: value or 0 for key, value in ours.items()} == makers


def test_there_is_a_recipe_for_each_model_of_the_table():
    named = {load_recipe(name).get("model_name_or_path") for name in MODEL_RECIPES}
    assert named == {model for maker in MAKERS.values() for model in maker["models"]}


@pytest.mark.parametrize("name", MODEL_RECIPES)
def test_evaluations_sample_as_the_makers_say(name):
    recipe = load_recipe(name)
    makers = settings_of_makers(recipe)
    if recipe.get("eval_temperature") is None:  # evaluations sample as training does
        assert same(sampling(recipe), makers)
    else:
        assert same(sampling(recipe, "eval_"), makers)
        assert sampling(recipe) == WHOLE


@pytest.mark.parametrize("name", MODEL_RECIPES)
def test_thinking_and_the_date_are_chosen_where_the_template_reads_them(name):
    recipe = load_recipe(name)
    family = family_of(recipe.get("model_name_or_path"))
    template = tokenizer_of(family).chat_template
    read = {option for option in ("enable_thinking", "date_string") if option in template}
    assert set(recipe.get("chat_template_kwargs") or {}) == read


def prompt(family, **options):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    return tokenizer_of(family).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **options
    )


@pytest.mark.parametrize("family", MAKERS)
def test_templates_read_enable_thinking_as_the_table_says(family):
    maker = MAKERS[family]
    texts = [prompt(family, enable_thinking=thinks) for thinks in (False, True)]
    assert (texts[0] != texts[1]) == ("thinking" in maker)
    assert prompt(family) == texts[maker.get("thinks_by_default", False)]


@pytest.mark.parametrize("family", MAKERS)
def test_templates_have_a_turn_for_the_system_message_as_the_table_says(family):
    text = prompt(family)
    between = text[text.index("Be brief.") : text.index("Hello.")]
    own_turn = between.removeprefix("Be brief.").strip() != ""
    assert own_turn == (MAKERS[family]["system"] == "own")


def with_tiny_model(name, folder):
    """The keys that replace a recipe's model and its dataset of the hub."""
    recipe = load_recipe(name)
    save_tiny(family_of(recipe.get("model_name_or_path")), folder / "model")
    replaced = {
        "model_name_or_path": str(folder / "model"),
        "output_dir": str(folder / "run"),
        "dataset_name": None,
        "dataset_config": None,
    }
    if recipe.get("task") == "prompts":
        rows = folder / "rows.jsonl"
        write_json_rows(rows, MATH_ROWS)
        replaced |= {"dataset_name": str(rows), "eval_dataset_name": str(rows)}
    return replaced


@pytest.mark.parametrize("name", MODEL_RECIPES)
def test_a_recipe_passes_the_checks(name, tmp_path):
    findings = check_recipe(name, with_tiny_model(name, tmp_path), elsewhere=True)
    assert findings.sound, findings.problems
    assert findings.notes == []
    assert findings.figures["prompts"]["prefilled"] is False


@pytest.mark.parametrize("name", MODEL_RECIPES)
def test_a_recipe_needs_what_its_header_says(name, capsys):
    header = MODEL_RECIPES[name].read_text(encoding="utf-8").partition("\nmodel_name_or_path")[0]
    assert f"#   grpo-ext train --config recipes/{name}.yaml\n" in header
    command = re.search(r"#   grpo-ext (plan --config \S+ --gpu (\w+))\n", header)
    needs = re.search(r"# Needs (one GPU|eight GPUs) of (\d+) GB: about ([\d.]+) GiB", header)
    recipe = load_recipe(name)
    assert main([*command[1].split(), "--rows", "7473", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    gigabytes = int(needs[2])
    assert GPU_GIGABYTES[command[2]] == gigabytes
    assert plan["batch"]["num_processes"] == {"one GPU": 1, "eight GPUs": 8}[needs[1]]
    memory = plan["memory_bytes"]
    assert float(needs[3]) == pytest.approx(memory["total"] / 2**30, rel=0.1)
    share = recipe.get("vllm_gpu_memory_utilization")
    assert f"a share of {share:g} for vLLM" in header
    room = (0.85 - share) * gigabytes * 10**9
    assert memory["total"] < room
    size = model_size(recipe.flat, recipe.model)
    tokens = plan["per_device_eval_batch_size"] * (256 + recipe.get("max_completion_length"))
    evaluation = tokens * (cache_bytes(size) + layer_bytes(size))
    assert memory["weights"] + memory["optimizer"] + evaluation < room
    assert plan["longest_completion"] > recipe.get("max_completion_length")


def distinct_characters(completions):
    """The number of distinct characters."""
    return [float(len(set(text))) for text in completions]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODEL_RECIPES)
def test_five_steps(name, tmp_path):
    stated = load_recipe(name)
    family = family_of(stated.get("model_name_or_path"))
    sizes = {**SIZES, "max_steps": 5, **with_tiny_model(name, tmp_path)}
    # an untrained model earns nothing from the recipe's rewards, and would not be trained
    register("distinct")(distinct_characters)
    sizes["reward_funcs"] = [*stated.get("reward_funcs"), "distinct"]
    sizes["reward_weights"] = [*(stated.get("reward_weights") or [1.0]), 1.0]
    more = {}
    if (processor := processor_of(family)) is not None:
        more["processing_class"] = processor
    trainer = make_trainer(load_recipe(name, sizes), **more)
    keys = yaml.safe_load(MODEL_RECIPES[name].read_text(encoding="utf-8")).keys() - sizes.keys()
    for key in keys - {"report_to"}:  # of which transformers makes a list
        if hasattr(trainer.args, key):
            assert getattr(trainer.args, key) == stated.get(key), key
    model = trainer.model.get_base_model() if stated.get("use_peft") else trainer.model
    assert type(model).__name__ == CLASSES[family]
    trainer.train()
    losses = metric_values(trainer, "loss")
    assert len(losses) == 5
    assert all(math.isfinite(loss) for loss in losses)
    assert all(norm > 0 for norm in metric_values(trainer, "grad_norm"))
    if processor is None:  # else TRL generates, and records no log-probs of the sampler
        assert max(metric_values(trainer, "sampling/logp_difference/max")) < 1e-4
