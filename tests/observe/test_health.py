"""The health monitor: silent on healthy runs, and quick where one goes wrong."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from grpo_ext.common.noise import error_of_neighbors
from grpo_ext.environments.transcript import as_text
from grpo_ext.observe.health import repeats_itself, written_text
from grpo_ext.observe.health_rules import (
    RULES,
    WINDOW,
    History,
    Watch,
    chosen_rules,
    reward_collapse,
)
from grpo_ext.observe.jsonl import read
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import RecipeError
from tests.support.logs import json_rows
from tests.support.tiny_run import tiny_arguments, tiny_trainer

RECORDED = Path(__file__).parent / "recorded"


def recorded(name):
    return json_rows(RECORDED / f"{name}.jsonl")


def alarms(logs, rules=None):
    """Step and rule of every alarm."""
    watch = Watch(chosen_rules(rules))
    return [(step, alarm["alarm"]) for step, log in enumerate(logs, 1) for alarm in watch.add(log)]


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("healthy-*.jsonl")))
def test_recorded_healthy_runs_raise_no_alarm(name):
    logs = recorded(name)
    assert len(logs) == 80 and {
        "reward",
        "entropy",
        "grad_norm",
        "completions/clipped_ratio",
    } <= set(logs[0])
    assert alarms(logs) == []


def test_a_recorded_run_with_too_high_a_learning_rate_is_caught():
    raised = alarms(recorded("collapse"))
    step, first = raised[0]
    assert first == "reward_collapse"
    assert step <= 4 + 1.5 * WINDOW  # the reward begins to fall at step 4
    assert {"entropy", "no_signal"} <= {name for _, name in raised}


def healthy(step, rng):
    """Made-up figures of a run that learns, noisy as small batches are."""
    progress = 1 - math.exp(-step / 60)
    return {
        "loss": rng.gauss(0, 0.05),
        "reward": 0.3 + 0.5 * progress + rng.gauss(0, 0.04),
        "kl": 0.02 * progress + abs(rng.gauss(0, 0.004)),
        "entropy": 0.9 - 0.6 * progress + rng.gauss(0, 0.03),
        "completions/mean_length": 200 + 150 * progress + rng.gauss(0, 12),
        "completions/clipped_ratio": max(0, 0.05 + rng.gauss(0, 0.03)),
        "frac_reward_zero_std": max(0, 0.3 + rng.gauss(0, 0.1)),
        "clip_ratio/region_mean": abs(rng.gauss(0, 0.02)),
        "sampling/logp_difference/mean": 0.01 + abs(rng.gauss(0, 0.004)),
        "sampling/kl": 1e-4 + abs(rng.gauss(0, 5e-5)),
        "sampling/edge_tokens": abs(rng.gauss(0, 0.02)),
        "grad_norm": 0.3 * math.exp(rng.gauss(0, 0.4)),
        "samples/repetition": max(0, rng.gauss(0.02, 0.05)),
    }


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_raises_no_alarm(seed):
    rng = random.Random(seed)
    assert alarms([healthy(step, rng) for step in range(300)]) == []


BROKEN = {
    "not_finite": lambda log, t: {"grad_norm": math.nan},
    "reward_collapse": lambda log, t: {"reward": log["reward"] - 0.08 * t},
    "kl": lambda log, t: {"kl": log["kl"] + 0.3 * t},
    "entropy": lambda log, t: {"entropy": 0.9 * math.exp(-t)},
    "truncated": lambda log, t: {"completions/clipped_ratio": min(1, 0.2 * t)},
    "length": lambda log, t: {"completions/mean_length": log["completions/mean_length"] * 1.35**t},
    "repetition": lambda log, t: {"samples/repetition": 0.7},
    "no_signal": lambda log, t: {"frac_reward_zero_std": 1.0},
    "clipped": lambda log, t: {"clip_ratio/region_mean": 0.6},
    "logp_difference": lambda log, t: {"sampling/logp_difference/mean": 0.5},
    "sampler_kl": lambda log, t: {"sampling/kl": 0.002},
    "edge_tokens": lambda log, t: {"sampling/edge_tokens": 0.3},
    "age": lambda log, t: {"overlap/age": 16.0},
    "grad_norm": lambda log, t: {"grad_norm": 30.0},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("start", [60, 200])
def test_each_fault_is_caught_within_ten_steps_of_its_start(rule, start):
    rng = random.Random(0)
    logs = [healthy(step, rng) for step in range(start + 20)]
    for t, log in enumerate(logs[start:], 1):
        log.update(BROKEN[rule](log, t))
    found = alarms(logs)
    assert found and found[0][1] == rule and start < found[0][0] <= start + WINDOW
    assert [name for _, name in found].count(rule) == 1  # it speaks once


def test_a_rule_speaks_again_after_it_was_quiet():
    rng = random.Random(1)
    logs = [healthy(step, rng) for step in range(100)]
    for step in (30, 31, 32, 70, 71, 72):
        logs[step]["grad_norm"] = 100.0
    assert [name for _, name in alarms(logs)] == ["grad_norm", "grad_norm"]


def test_texts_that_repeat_themselves():
    assert repeats_itself("so 3 + 4 = 7, no. " * 50) and repeats_itself("好" * 300)
    assert not repeats_itself("ha" * 20)
    rng = random.Random(0)
    assert not repeats_itself(
        "; ".join(
            f"{rng.randint(1, 99)} + {rng.randint(1, 99)} = {rng.randint(1, 198)} no"
            for _ in range(60)
        )
    )


def test_what_an_environment_repeats_is_no_repetition_of_the_model():
    said = [
        ("user", "the same board. " * 40) if turn % 2 else ("assistant", f"move {turn}")
        for turn in range(9)
    ]
    messages = [{"role": role, "content": text} for role, text in said]
    row = {"text": as_text(messages), "messages": messages}
    assert repeats_itself(row["text"]) and not repeats_itself(written_text(row))
    assert repeats_itself(written_text({"text": row["text"]}))


def test_rules_are_set_in_a_recipe():
    rules = {
        rule.name: rule
        for rule in chosen_rules(
            {"kl": False, "length": 4, "grad_norm": {"action": "stop"}}, "checkpoint"
        )
    }
    assert (
        "kl" not in rules
        and rules["length"].threshold == 4
        and rules["length"].action == "checkpoint"
    )
    assert (
        rules["grad_norm"].action == "stop"
        and rules["grad_norm"].threshold == RULES["grad_norm"].threshold
    )
    assert chosen_rules(None, "none") == []


def test_rounding_between_sampler_and_trainer_only_warns_unless_a_recipe_says_otherwise():
    for settings, action in ((None, "warn"), ({"sampler_kl": {"action": "stop"}}, "stop")):
        rules = {rule.name: rule for rule in chosen_rules(settings, "stop")}
        assert rules["sampler_kl"].action == action
        assert rules["logp_difference"].action == "stop"


def test_the_age_of_the_weights_is_no_rounding():
    rng = random.Random(0)
    logs = [{**healthy(step, rng), "sampling/kl": 0.01} for step in range(40)]
    assert {name for _, name in alarms(logs)} == {"sampler_kl"}
    assert alarms([{**log, "overlap/age": 1.0} for log in logs]) == []


@pytest.mark.parametrize(
    "wrong, told",
    [
        ("{grad_nrom: 3}", "Did you mean 'grad_norm'"),
        ("{kl: high}", "false, a number, or"),
        ("{kl: {treshold: 3}}", "false, a number, or"),
        ("{kl: {action: halt}}", "warn, checkpoint, stop"),
    ],
)
def test_a_wrong_rule_is_told_with_its_line(tmp_path, wrong, told):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"model_name_or_path: m\nhealth_rules: {wrong}\n")
    with pytest.raises(RecipeError, match=r"recipe.yaml:2: .*" + told):
        load_recipe(path)


def parrot(completions, **kwargs):
    return [float(len(c[0]["content"]) % 2) for c in completions]


@pytest.mark.parametrize("temperature", [1.0, 0.7], ids=["as sampled", "another temperature"])
def test_a_run_that_scores_another_policy_than_it_samples_is_noticed(
    tiny_folder, tmp_path, temperature
):
    args = tiny_arguments(tmp_path, max_steps=4, sampler_check_share=1.0)
    rows = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Use {i}."}]} for i in range(40)]
    )
    trainer = tiny_trainer(tiny_folder, [parrot], args, rows)
    scorer = trainer.parts.scorer
    scorer.params = replace(scorer.params, temperature=temperature)
    trainer.train()
    raised = {row["alarm"] for row in json_rows(tmp_path / "metrics.jsonl") if "alarm" in row}
    expected = set() if temperature == 1.0 else {"logp_difference", "sampler_kl"}
    assert raised & {"logp_difference", "sampler_kl"} == expected


def test_an_alarm_is_written_down_and_does_what_it_is_told(tiny_folder, tmp_path):
    args = tiny_arguments(
        tmp_path,
        max_steps=30,
        per_device_train_batch_size=4,
        max_completion_length=4,
        learning_rate=0.0,
        health_rules={"truncated": {"action": "stop"}, "no_signal": False},
    )
    rows = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Use {i}."}]} for i in range(40)]
    )
    trainer = tiny_trainer(tiny_folder, [parrot], args, rows)
    trainer.train()
    assert (
        trainer.state.global_step == WINDOW
    )  # an untrained model runs into a limit of 4 tokens from the first step
    assert (tmp_path / f"checkpoint-{WINDOW}" / "model.safetensors").exists()
    noted = [row for row in read(tmp_path / "metrics.jsonl") if "alarm" in row]
    assert [(row["step"], row["alarm"], row["action"]) for row in noted] == [
        (WINDOW, "truncated", "stop")
    ]
    assert "max_completion_length" in noted[0]["message"]
    assert noted[0]["message"].endswith("See docs/does-not-learn.md#completions-are-cut-off.")


def collapse_of(rewards):
    history = History()
    for reward in rewards:
        history.add({"reward": reward})
    return reward_collapse(history)


def noise_around(level, spread, correlation, count, rng):
    """A reward that does not change but for AR(1) noise."""
    noise = rng.standard_normal(count)
    for i in range(1, count):
        noise[i] = correlation * noise[i - 1] + math.sqrt(1 - correlation**2) * noise[i]
    return level + spread * noise


def test_a_fall_is_measured_in_errors_of_a_mean_of_five():
    """Independent noise of variance 1.

    Neighbors differ by variance 2, and a mean of five has the error 1 / sqrt(5).
    """
    rng = np.random.default_rng(0)
    values = rng.standard_normal(400)
    assert error_of_neighbors(values, 5) == pytest.approx(1 / math.sqrt(5), rel=0.1)
    shares = []
    for _ in range(20):
        fallen = [*rng.standard_normal(400), *(rng.standard_normal(5) - 4)]
        means = np.convolve(fallen, np.full(5, 0.2), "valid")
        shares.append(collapse_of(fallen) / ((means.max() - means[-1]) * math.sqrt(5)))
    assert np.mean(shares) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_a_fall_is_measured_in_true_errors_of_correlated_noise(correlation):
    """The oracle is the covariance of AR(1) noise.

    The estimate is shrunk: 0.8 counts as a bit less.
    """
    lags = abs(np.subtract.outer(np.arange(5), np.arange(5)))
    true_error = math.sqrt((correlation**lags).sum()) / 5
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(20):
        fallen = noise_around(0, 1, correlation, 400, rng)
        fallen[-5:] -= 10
        means = np.convolve(fallen, np.full(5, 0.2), "valid")
        # the difference at the fall counts as one of the 399 between neighbors
        jump = math.sqrt(1 + 10**2 / 399 / (2 - 2 * correlation))
        shares.append(collapse_of(fallen) * jump * true_error / (means.max() - means[-1]))
    assert 0.9 < np.mean(shares) < 1.25  # by the differences alone 2.1 for 0.5, and 4.3 for 0.8


def test_slow_noise_is_no_collapse():
    """Noise of autocorrelation 0.5, 200 logs.

    4 of 5 runs had an alarm as long as it counted as independent.
    """
    rng = np.random.default_rng(2)
    threshold = RULES["reward_collapse"].threshold
    alarmed = 0
    for _ in range(40):
        rewards = noise_around(0.6, 0.15, 0.5, 200, rng)
        alarmed += any(collapse_of(rewards[:end]) > threshold for end in range(10, 201, 2))
    assert alarmed <= 6


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_a_collapse_after_14_steps_is_seen_within_8_steps(correlation):
    """As in benchmarks/results/instability.json: from 0.63 to 0.25 within 6 steps."""
    rng = np.random.default_rng(3)
    threshold = RULES["reward_collapse"].threshold
    falling = np.concatenate([np.zeros(14), np.linspace(0, -0.38, 7)[1:], np.full(6, -0.38)])
    delays = []
    for _ in range(40):
        rewards = falling + noise_around(0.63, 0.04, correlation, len(falling), rng)
        alarm = next(end for end in range(10, 27) if collapse_of(rewards[:end]) > threshold)
        delays.append(alarm - 14)
    assert max(delays) <= 8 and np.median(delays) <= 6


def test_a_constant_reward_that_falls_is_compared_with_its_own_fall():
    assert collapse_of([1.0] * 30 + [0.9] * 5) == 0  # by less than a fifth
    assert 0 < collapse_of([1.0] * 30 + [0.5] * 5) < 1000
