"""The metric for the best model is settled before a model is loaded, also with several evaluation
sets, whose figures carry their names.
"""

from __future__ import annotations

import pytest
from datasets import Dataset

from grpo_ext.recipe.best_model import EvaluationMetrics
from grpo_ext.trainer.start_checks import CannotLearn
from tests.support.runs_without_learning import EVALUATED, REWARDS, rows, run_python, run_recipe

BEST = {**EVALUATED, "load_best_model_at_end": True}


@pytest.fixture(scope="module")
def varied():
    names: dict = {}
    exec(REWARDS, names)
    return names["varied"]


def sets():
    return {name: Dataset.from_list(rows()[:8]) for name in ("a", "b")}


def test_the_best_model_of_one_of_several_sets(tiny_folder, tmp_path, varied):
    settings = {**BEST, "metric_for_best_model": "eval_a_reward", "max_steps": 3}
    trainer = run_python(tiny_folder, tmp_path, [varied], more={"eval_dataset": sets()}, **settings)
    history = trainer.state.log_history
    of_a, of_b = (
        [row[f"eval_{name}_reward"] for row in history if f"eval_{name}_reward" in row]
        for name in ("a", "b")
    )
    assert len(of_a) == len(of_b) == 3 and of_a != of_b
    assert trainer.state.best_metric == max(of_a)
    assert not any("eval_reward" in row for row in history)
    constants = {key for row in history for key in row if "constant" in key}
    assert constants >= {"eval_a_rewards/varied/constant", "eval_b_rewards/varied/constant"}
    assert all("reward" in row for row in history if "loss" in row)  # of training, as before
    assert "eval_a_reward" in (tmp_path / "README.md").read_text().replace("\\", "")


REFUSED = {
    "reward": ({}, "Did you mean 'a_reward'?"),
    "eval_varied": ({}, "Did you mean 'a_rewards/varied/mean'?"),
    "eval_b_varied": ({}, "Did you mean 'b_rewards/varied/mean'?"),
    "eval_a_rewrad": ({}, "Did you mean 'a_reward'"),
    "eval_a_loss": ({}, "uses eval_loss"),
    "eval_a_reward": ({"eval_temperature": 0.0}, "They log a_varied, a_pass@1"),
    "b_rewards/varied/mean": (
        {"greater_is_better": False},
        "selects the model with the lowest reward",
    ),
}


@pytest.mark.parametrize("metric", REFUSED)
def test_a_metric_of_several_sets_is_refused_before_a_model_is_loaded(
    metric, tiny_folder, tmp_path, varied
):
    settings, words = REFUSED[metric]
    settings = {**BEST, **settings, "metric_for_best_model": metric}
    more = {"eval_dataset": sets()}
    with pytest.raises(CannotLearn) as refused:
        run_python(tiny_folder, tmp_path, [varied], "no/model", more=more, **settings)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("metric", "settings", "words"),
    [
        ("varied", {}, "Did you mean 'rewards/varied/mean'"),
        ("eval_a_reward", {"eval_temperature": 0.0}, None),
        ("rewards/other/mean", {}, "evaluations do not log 'rewards/other/mean'"),
        ("reward", {"eval_temperature": 0.0}, "They log varied, pass@1"),
    ],
)
def test_a_recipes_metric_is_settled_without_a_model(metric, settings, words, tmp_path, capsys):
    settings = {**BEST, **settings, "metric_for_best_model": metric}
    assert run_recipe("no/model", tmp_path / "run", ["varied"], **settings) == 2
    said = capsys.readouterr().err
    if words is None:
        assert "metric_for_best_model" not in said  # a reward may log it
    else:
        assert words in said and "metric_for_best_model" in said


def test_the_names_of_metrics():
    two = EvaluationMetrics(["x", "y"], False, sets=["a", "a_b"])
    for metric in ("a_reward", "a_b_reward_std", "a_rewards/x/std", "a_b_rewards/y/mean"):
        assert two.fault(metric) is None
    assert two.fault("a_b_x") is not None and "'a_b_rewards/x/mean'" in two.fault("a_b_x")
    assert two.fault("a_logged_by_a_reward") is None
    decoded = EvaluationMetrics(["x"], True, 4)
    for metric in ("x", "x_se", "pass@1", "mean@4", "pass@4", "mixed@4", "length"):
        assert decoded.fault(metric) is None
    assert decoded.fault("pass@8") is not None
