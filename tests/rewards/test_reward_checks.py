"""Rewards that the trainer cannot call are refused at both doors before a model is loaded. Those
that would share a metric are refused in a recipe, and numbered in Python.
"""

from functools import partial

import pytest

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.rewards.guard import Guard
from grpo_ext.rewards.reward_checks import check_call, metric_name, unique_names
from grpo_ext.rewards.reward_specs import check_columns, resolve_rewards
from grpo_ext.trainer.judging import rewards_for


class Scorer:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, completions, **kwargs):
        return [self.scale * len(text) for text in completions]


def graded(completions, scale=1.0, **kwargs):
    return [scale] * len(completions)


def no_rest(completions):
    return [0.0] * len(completions)


def everything(prompts, completions, completion_ids, trainer_state, log_extra, log_metric):
    return [0.0] * len(completions)


def by_position(completions, /, **kwargs):
    return [0.0] * len(completions)


SAME_NAME = {
    "lambdas": [lambda completions, **kwargs: [0.0], lambda completions, **kwargs: [1.0]],
    "partials": [partial(graded, scale=1.0), partial(graded, scale=2.0)],
    "objects": [Scorer(1.0), Scorer(2.0)],
    "a registered one twice": ["format", "format"],
}
WRONG_SIGNATURE = {
    "no_rest": (no_rest, "does not accept prompts, completion_ids, trainer_state"),
    "by_position": (by_position, "takes 'completions' only by position"),
    "Scorer": (Scorer, "is a class. Pass an instance of it: Scorer(...)"),
}


def from_python(rewards):
    args = GRPOExtConfig("out", use_cpu=True, bf16=False)
    return GRPOExtTrainer("no/model", rewards, args, None)


@pytest.mark.parametrize("ending", ["_se", "_problems", "_constant"])
def test_a_name_that_reports_take_for_another_metric_is_refused(ending):
    def reward(completions, **kwargs):
        return [0.0] * len(completions)

    reward.__name__ = f"graded{ending}"
    with pytest.raises(ValueError, match=f"Reward 'graded{ending}' has a name that ends like"):
        from_python([reward])
    with pytest.raises(ValueError, match="ends like the metrics"):
        resolve_rewards([{"name": "format", "label": f"format{ending}"}])


@pytest.mark.parametrize("kind", SAME_NAME)
def test_two_rewards_of_one_name_are_refused_in_a_recipe(kind):
    with pytest.raises(ValueError, match=r"2 rewards are called .* and would share one metric"):
        resolve_rewards(SAME_NAME[kind])


@pytest.mark.parametrize("kind", SAME_NAME)
def test_two_rewards_of_one_name_are_numbered_in_python(kind, caplog):
    args = GRPOExtConfig("out", use_cpu=True, bf16=False, reward_weights=[1.0, 2.0])
    first, second = rewards_for(SAME_NAME[kind], args)
    name = first.name
    assert [first.__name__, second.__name__] == [name, f"{name}_2"]
    [warning] = caplog.messages
    assert f"in the order of reward_funcs: {name}, {name}_2. To choose the names" in warning


def test_numbers_keep_to_free_names():
    def called(name):
        function = partial(graded)
        function.__name__ = name
        return function

    names = ["a", "a_2", "a", "rm", "a"]
    rewards = [*map(called, names), "org/rm", Guard(called("b")), called("b")]
    expected = ["a", "a_2", "a_3", "rm_2", "a_4", "rm", "b", "b_2"]
    assert unique_names(rewards) == expected
    assert unique_names(rewards[:2]) == ["a", "a_2"]


@pytest.mark.parametrize("door", [resolve_rewards, from_python])
@pytest.mark.parametrize("name", WRONG_SIGNATURE)
def test_a_function_that_the_trainer_cannot_call_is_refused(name, door):
    function, words = WRONG_SIGNATURE[name]
    with pytest.raises(ValueError) as refused:
        door([function])
    assert f"Reward {name!r}" in str(refused.value) and words in str(refused.value)


def test_functions_that_can_be_called_pass():
    for function in (graded, everything, Scorer(1.0), partial(graded, scale=2.0)):
        check_call(function)
    check_call(lambda **kwargs: [0.0])


def test_a_column_that_a_function_does_not_take_is_found_when_the_columns_are_known():
    check_columns([everything], ["prompt"])
    with pytest.raises(ValueError, match="'everything' does not accept level, which the trainer"):
        check_columns([everything], ["prompt", "level"])


def test_a_parameter_that_is_no_column_is_found_without_a_parameter_for_completions():
    with pytest.raises(ValueError, match="reads the column 'texts', which the dataset lacks"):
        check_columns([lambda texts, **kwargs: [0.0]], ["prompt", "level"])


def test_the_advice_names_the_entry_of_the_recipe(tmp_path):
    (tmp_path / "mine.py").write_text("def graded(completions, **kwargs): return [0.0]")
    entry = f"{tmp_path}/mine.py:graded"
    with pytest.raises(ValueError) as refused:
        resolve_rewards([{"name": entry, "weight": 2.0}, entry])
    advice = f"{{name: {entry}, label: graded_2}}"
    assert advice in str(refused.value)
    renamed, _ = resolve_rewards([entry, {"name": entry, "label": "graded_2"}])
    assert [metric_name(reward) for reward in renamed] == ["graded", "graded_2"]


@pytest.mark.parametrize("door", [resolve_rewards, from_python])
def test_two_reward_models_of_one_name_are_renamed_by_their_path(door):
    with pytest.raises(ValueError, match=r"called 'rm' .* set model.config._name_or_path"):
        door(["one/rm", "two/rm"])


def test_a_loaded_reward_model_has_the_name_of_its_folder():
    class Model:
        def parameters(self):
            return []

        class config:
            _name_or_path = "org/rm-one"

    assert metric_name(Model()) == "rm-one" == metric_name("org/rm-one")
