"""The fields of TRL that the package lists are those of the installed TRL."""

from __future__ import annotations

import dataclasses

import pytest
import transformers
from accelerate.parallelism_config import ParallelismConfig
from trl import ModelConfig, SFTConfig

from grpo_ext.recipe import keys, trl_fields
from grpo_ext.recipe.fields import default_of, hints_of
from grpo_ext.recipe.load import load_recipe, load_sft_recipe
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.recipe.schema import GRPO_CLASSES, SFT_CLASSES
from grpo_ext.recipe.values import choices, convert, in_words
from tests.recipe.trl_fields import FILE, source

VALUES = (0, 1, -1, 0.5, 2.5, "x", "", None, True, [], ["x"], [1.5], {"x": 1}, "1e-3", "linear")


def converted(name, value, hint):
    """What a value becomes, or why it does not fit."""
    try:
        return convert(name, value, hint)
    except ValueError as error:
        return str(error)


def test_the_file_is_what_the_installed_versions_give():
    assert FILE.read_text(encoding="utf-8") == source(), "run `make fields`"


@pytest.mark.parametrize(
    "listed, real", [(keys.GRPO_KEYS, GRPO_CLASSES), (keys.SFT_KEYS, SFT_CLASSES)]
)
def test_keys_have_the_types_and_defaults_of_the_classes_that_are_built(listed, real):
    if not keys.fields_are_known():
        pytest.skip("other versions are asked for their fields")
    assert listed.keys() == real.keys()
    for part, cls in real.items():
        fields = {f.name: default_of(f) for f in dataclasses.fields(listed[part])}
        assert fields == {f.name: default_of(f) for f in dataclasses.fields(cls)}
        assert list(fields) == [f.name for f in dataclasses.fields(cls)]
        hints = hints_of(listed[part])
        for name, hint in hints_of(cls).items():
            assert in_words(hints[name]) == in_words(hint), name
            assert choices(hints[name]) == choices(hint), name
            for value in () if name == keys.BUILT else VALUES:
                assert converted(name, value, hints[name]) == converted(name, value, hint), name


def test_the_installed_versions_are_known():
    assert keys.fields_are_known()
    assert keys.keys_of(grpo=True)["training"] is keys.TrainerKeys


def messages(load, overrides) -> list[str]:
    with pytest.raises(RecipeError) as refused:
        load(None, overrides)
    return [str(problem) for problem in refused.value.problems]


@pytest.mark.parametrize(
    "load, overrides",
    [
        (load_recipe, {"bta": 1, "beta": "x", "num_generations": 5, "max_length": 3, "fp16": True}),
        (load_recipe, {"optim": ["adamw"], "debug": ["x"], "cache_implementation": "fast"}),
        (load_recipe, {"parallelism_config": {"dp_shard_size": "x"}, "beta": "x", "seed": "y"}),
        (load_recipe, {"eval_strategy": "step", "lora_r": 0, "task": "countdwn"}),
        (load_sft_recipe, {"num_generations": 8, "packing_strategy": "x", "max_length": "long"}),
    ],
)
def test_other_versions_are_asked_for_their_fields_and_refuse_alike(load, overrides, monkeypatch):
    known = messages(load, overrides)
    later_patch = f"{transformers.__version__}.1"
    monkeypatch.setitem(trl_fields.VERSIONS, "transformers", [later_patch])
    assert keys.keys_of(grpo=True) == GRPO_CLASSES
    assert keys.keys_of(grpo=False) == SFT_CLASSES
    assert messages(load, overrides) == known and len(known) >= 3


def test_values_become_the_classes_of_trl():
    recipe = load_recipe(None, {"model_name_or_path": "m", "debug": ["underflow_overflow"]})
    assert type(recipe.model) is ModelConfig
    assert type(recipe.training) is GRPO_CLASSES["training"]
    assert recipe.training.debug == ["underflow_overflow"]
    built = load_recipe(None, {"model_name_or_path": "m", keys.BUILT: {"dp_shard_size": 2}})
    assert type(built.values["training"][keys.BUILT]) is ParallelismConfig
    supervised = load_sft_recipe(None, {"model_name_or_path": "m", "dataset_name": "d"})
    assert supervised.class_of("training") is SFTConfig
