"""Measures on logs made by hand, whose figures are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grpo_ext.observe.read_run import RunData
from grpo_ext.reproduce.measures import MEASURES
from grpo_ext.reproduce.measures.completions import kind_of_fault, phrases_of


def logged(recipe=None, alarms=(), **curves):
    """A run with these curves; `__` in a name stands for a slash."""
    curves = {name.replace("__", "/"): list(values) for name, values in curves.items()}
    count = len(next(iter(curves.values())))
    metrics = [
        {"step": i + 1, **{name: values[i] for name, values in curves.items()}}
        for i in range(count)
    ]
    metrics += [{"step": count, "alarm": rule} for rule in alarms]
    return RunData("run", Path("run"), metrics, recipe=recipe or {})


def sampled(rows):
    """A run with these completions: (step, group, prompt, text, rewards, columns)."""
    samples = [
        {
            "step": step,
            "group": group,
            "prompt_id": prompt,
            "mode": "train",
            "text": text,
            "rewards": rewards,
            "reward": sum(rewards.values()),
            "columns": columns,
        }
        for step, group, prompt, text, rewards, columns in rows
    ]
    return RunData("run", Path("run"), [], samples=samples)


def mean(name, runs, **arguments):
    figure = MEASURES[name](runs, **arguments)
    return None if figure is None else figure.estimate.mean


def noise(count, scale=0.02, seed=0):
    return np.random.default_rng(seed).normal(0, scale, count)


def test_end_and_change():
    run = logged(reward=[0.0] * 10 + [1.0] * 10)
    assert mean("end", [run], metric="reward") == 1
    assert mean("change", [run], metric="reward") == 1
    assert mean("end", [run], metric="other") is None
    assert mean("change", [run], metric="other") is None


def test_sum_and_difference_of_ends():
    run = logged(a=[0.5] * 12, b=[1.0] * 12)
    assert mean("end_of_sum", [run], metrics=["a", "b"], weights=[2.0, 1.0]) == pytest.approx(2)
    assert mean("difference", [logged(a=[0.75] * 12), run], metric="a") == pytest.approx(0.25)


def test_what_rises_later_is_told_by_how_many_steps():
    step = np.arange(60)
    run = logged(soon=1.0 * (step >= 10) + noise(60), late=1.0 * (step >= 40) + noise(60, seed=1))
    assert 28 <= mean("later", [run], first="soon", second="late") <= 32
    assert mean("later", [run], first="late", second="soon") < -27
    flat = logged(soon=1.0 * (step >= 10) + noise(60), late=noise(60))
    assert mean("later", [flat], first="soon", second="late") is None


def test_noise_is_compared_without_the_trend():
    rising = np.linspace(0, 30, 60)
    run = logged(a=rising + noise(60, 0.2), b=rising + noise(60, 0.05, seed=1))
    assert mean("noisier", [run], first="a", second="b") == pytest.approx(0.15, abs=0.06)


def test_a_dip_is_seen_and_a_rise_or_pure_noise_is_none():
    step = np.arange(60)
    dipped = logged(length=np.abs(step - 12) + 20 + noise(60, 0.5))
    assert mean("dip", [dipped], metric="length") > 5
    assert mean("dip", [logged(length=step + noise(60, 0.5))], metric="length") <= 0.5
    of_noise = [mean("dip", [logged(x=noise(60, 1.0, seed))], metric="x") for seed in range(20)]
    assert np.mean(of_noise) <= 0.05


def test_a_fall_is_that_of_the_metric_that_falls_less():
    step = np.arange(40)
    up = np.where(step < 20, step / 20, 1 - (step - 20) / 20) + noise(40)
    assert mean("fall", [logged(a=up, b=up / 2)], metrics=["a", "b"]) == pytest.approx(
        -0.4, abs=0.1
    )
    assert mean("fall", [logged(a=up, b=step + 0.0)], metrics=["a", "b"]) >= 0


def test_the_same_reward_sooner_by_steps_and_by_seconds():
    step = np.arange(40)
    slow = logged(reward=np.minimum(step / 30, 1.0), time__train=[2.0] * 40)
    fast = logged(reward=np.minimum(step / 15, 1.0), time__train=[1.0] * 40)
    assert mean("reaches_sooner", [slow, fast], metric="reward") == pytest.approx(2, abs=0.2)
    both = mean("reaches_sooner", [slow, fast], metric="reward", by="seconds")
    assert both == pytest.approx(4, abs=0.4)
    assert mean("seconds_ratio", [slow, fast]) == 2
    assert (
        mean("reaches_sooner", [logged(reward=[0.0] * 40), logged(other=[1.0])], metric="reward")
        is None
    )


def test_rewards_are_compared_after_equal_seconds():
    step = np.arange(40)
    quick = logged(reward=step / 40, time__train=[1.0] * 40)
    slow = logged(reward=step / 40, time__train=[2.0] * 40)
    assert mean("at_equal_time", [quick, slow], metric="reward") == pytest.approx(0.4475, abs=0.03)


def test_seconds_linear_in_the_length_do_not_bend():
    def runs(square):
        return [
            logged(
                completions__mean_length=[length] * 5,
                time__train=[0.1 + 0.01 * length + square * length**2] * 5,
            )
            for length in (50, 100, 200, 400)
        ]

    assert mean("bend", runs(0.0)) == pytest.approx(0, abs=1e-9)
    assert mean("bend", runs(1e-4)) == pytest.approx(16 / 20.1, abs=1e-6)


def test_alarms_are_compared_with_falls():
    step = np.arange(40)
    fallen = np.where(step < 15, step / 15, np.maximum(0.1, 1 - (step - 15) / 10)) + noise(40)
    risen = step / 40 + noise(40)
    runs = [
        logged(reward=fallen, alarms=["reward_collapse"]),
        logged(reward=risen),
        logged(reward=fallen),
        logged(reward=risen, alarms=["kl"]),
    ]
    assert mean("alarm_agrees", runs, rule="reward_collapse") == 0.75


def test_a_few_values_have_their_whole_mean_as_their_best():
    """A fall of 0.15 is less than a fifth of their mean, 0.85, but not of three fifths of it."""
    run = logged(reward=[0.9, 0.9, 0.75])
    assert mean("alarm_agrees", [run], rule="reward_collapse") == 1.0


def test_rewards_without_times_are_not_compared():
    runs = [logged(reward=[1.0, 2.0, 3.0]), logged(reward=[1.0, 2.0, 3.0])]
    assert mean("at_equal_time", runs, metric="reward") is None


def test_the_best_group_size_is_compared_with_the_inverse_of_the_success():
    def run(size, level):
        return logged({"num_generations": size}, reward=[level] * 20, success=[0.25] * 20)

    at_inverse = [run(2, 0.1), run(4, 0.3), run(8, 0.2)]
    assert mean("best_group_size", at_inverse, metric="reward", success="success") == 0
    larger = [run(2, 0.1), run(4, 0.3), run(8, 0.4)]
    assert mean("best_group_size", larger, metric="reward", success="success") == 1


@pytest.mark.parametrize(
    "text, kind",
    [
        ("<answer>\n5 + 3 - 1\n</answer>", "right"),
        ("<answer>5 + 3 - 1 = 9</answer>", "right"),
        ("<answer>5 - 3 + 1</answer>", "wrong sum"),
        ("<answer>5 + 3</answer>", "wrong numbers"),
        ("<answer>5 + 3 - 1", "no form"),
        ("<answer>five</answer>", "no form"),
        ("", "no form"),
    ],
)
def test_kinds_of_faults(text, kind):
    assert kind_of_fault({"text": text, "columns": {"nums": [1, 3, 5], "target": 7}}) == kind


def test_shares_of_faults_and_their_change():
    columns = {"nums": [1, 3, 5], "target": 7}
    wrong = ["<answer>5 - 3 + 1</answer>"] * 3 + ["nothing"]
    early = [(step, 0, f"p{i}", "nothing", {}, columns) for step in (1, 2) for i in range(4)]
    late = [(10, 0, f"p{i}", text, {}, columns) for i, text in enumerate(wrong)]
    run = sampled([*early, *late])
    assert mean("share_of_faults", [run], kind="wrong sum") == 0.75
    assert mean("change_of_fault", [run], kind="no form") == -0.75


def test_phrases_write_numbers_alike_and_end_with_the_thoughts():
    phrases = phrases_of("<think>\n5 + 13 is too High\n</think>\n<answer>\n5 + 13\n</answer>")
    assert "# + #" in phrases and "too high" in phrases
    assert not any("answer" in phrase for phrase in phrases)
    assert phrases_of("<think>\nlet us\n<answer>\n5 + 13\n</answer>") == {"let us"}


def test_a_phrase_that_appears_is_found_on_some_prompts_and_measured_on_others():
    def rows(step, text):
        return [(step, i, f"prompt {i}", f"<think>{text}</think>", {}, {}) for i in range(40)]

    run = sampled([*rows(1, "first guess here"), *rows(9, "let us try again")])
    figure = MEASURES["change_of_phrases"]([run])
    assert figure.estimate.mean == 1
    assert (
        "“let us try again” +1.00" in figure.details
        and "“first guess here” -1.00" in figure.details
    )
    same = sampled([*rows(1, "first guess here"), *rows(9, "first guess here")])
    assert mean("change_of_phrases", [same]) == 0


def test_a_mean_is_over_the_steps_in_which_the_other_metric_is_within_bounds():
    run = logged(std=[0.1, 0.2, 0.4, 0.9], success=[0.1, 0.4, 0.6, 0.7])
    bounds = {"at_least": 0.4, "at_most": 0.6}
    assert mean("mean_where", [run], metric="std", other="success", **bounds) == pytest.approx(0.3)
    none = {"at_least": 0.8, "at_most": 0.9}
    assert mean("mean_where", [run], metric="std", other="success", **none) is None


def test_groups_with_a_right_one_by_enumeration():
    rows = []
    for number, right in enumerate((4, 0, 2, 2)):
        rows += [(1, number, f"p{number}", "", {"ok": float(i < right)}, {}) for i in range(4)]
    # success 0.5, so pairs: all, none, and 5 of 6 pairs twice
    expected = (1 + 0 + 5 / 6 + 5 / 6) / 4
    found = mean("groups_with_a_right_one", [sampled(rows)], success="ok")
    assert found == pytest.approx(expected)


def test_formulas():
    assert mean("token_weight", [], loss="grpo", length=10, against=40) == pytest.approx(4)
    assert mean("token_weight", [], loss="bnpo", length=10, against=40) == pytest.approx(1)
    assert mean("kl_bias", []) == pytest.approx(0, abs=1e-12)
    policy = np.array([0.5, 0.3, 0.15, 0.05])
    reference = np.array([0.35, 0.3, 0.2, 0.15])
    ratio = policy / reference
    expected = (policy * (ratio - np.log(ratio) - 1)).sum() - (policy * np.log(ratio)).sum()
    assert mean("kl_bias", [], turned_round=True) == pytest.approx(expected)
    assert abs(expected) > 0.01
