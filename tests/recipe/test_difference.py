"""What may change between two runs in one folder."""

from grpo_ext.recipe.difference import as_yaml, differences
from grpo_ext.recipe.load import load_recipe


def test_limits_on_a_faulty_environment_may_change(tmp_path):
    world = {"name": "guess", "turns": 5}
    first = {"environment": world, "bf16": False, "model_name_or_path": "m"}
    (tmp_path / "recipe.yaml").write_text(as_yaml(load_recipe(None, first).flat))
    eased = {**world, "max_failure_rate": 1.0, "step_timeout": 60}
    assert differences(load_recipe(None, {**first, "environment": eased}), tmp_path) == {}
    longer = {**world, "turns": 6}
    found = differences(load_recipe(None, {**first, "environment": longer}), tmp_path)
    assert list(found) == ["environment"]
