"""What a probe says of group sizes: unbiased where it can be, and what training then shows."""

from __future__ import annotations

import json
import math
import statistics
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.cli.main import main
from grpo_ext.cli.probe import print_probe
from grpo_ext.curriculum.group_sizes import (
    SIZES,
    Estimate,
    Expectation,
    chance_rewards_differ,
    expect,
    solved_shares,
    suggest,
    wilson,
)
from grpo_ext.curriculum.pass_rates import PassCount, prompt_id, read_pass_rates, write_pass_rates
from grpo_ext.evaluation.probe_recipe import count_right
from grpo_ext.evaluation.score import Sample
from grpo_ext.objective.advantage import no_signal


@settings(deadline=None)
@given(n=st.integers(2, 16), size=st.integers(2, 16), p=st.floats(0, 1))
def test_the_chance_of_signal_is_unbiased(n, size, p):
    if size > n:
        with pytest.raises(ValueError, match="no unbiased estimate"):
            chance_rewards_differ((0, n), size)
        return
    mean = sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) * chance_rewards_differ((k, n - k), size) for k in range(n + 1))
    assert mean == pytest.approx(1 - p**size - (1 - p) ** size, abs=1e-9)


def drawn_counts(rng, prompts, samples, a, b):
    rates = rng.beta(a, b, prompts)
    return [PassCount(str(i), int(k), samples) for i, k in enumerate(rng.binomial(samples, rates))]


def share_under_beta(a, b, size):
    """By integrating numerically."""
    p = (np.arange(200_000) + 0.5) / 200_000
    density = p ** (a - 1) * (1 - p) ** (b - 1)
    return float((density * (1 - p**size - (1 - p) ** size)).sum() / density.sum())


@pytest.mark.parametrize("a, b", [(0.5, 1.5), (2.0, 5.0)])
def test_intervals_hold_the_truth_also_beyond_the_samples(a, b):
    rng = np.random.default_rng(1)
    within = {8: 0, 64: 0}
    for _ in range(20):
        counts = drawn_counts(rng, 128, 16, a, b)
        for size in within:
            expected = expect(counts, size)
            assert expected.extrapolated == (size > 16)
            truth = share_under_beta(a, b, size)
            within[size] += expected.with_signal.low <= truth <= expected.with_signal.high
            assert expected.with_signal.value == pytest.approx(truth, abs=0.15)
    assert min(within.values()) >= 16  # 95 % of 20 is 19; 15 or less has a chance of 3 in 1,000


def test_wilson_is_the_textbook_interval():
    found = wilson(10, 100)  # Newcombe 1998, table I, method 3, for 10 of 100
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.0552, 0.1744), abs=1e-4)
    assert (wilson(0, 20).low, wilson(20, 20).high) == (0.0, 1.0)
    assert 0.1 < wilson(0, 20).high < 0.2


def test_shares_of_solved_prompts():
    counts = [PassCount("a", 0, 4), PassCount("b", 4, 4), PassCount("c", 1, 4), PassCount("d", 3, 4)]
    assert {name: share.value for name, share in solved_shares(counts).items()} == {
        "never": 0.25,
        "sometimes": 0.5,
        "always": 0.25,
    }
    assert expect(counts, 4).with_signal.value == 0.5
    assert expect(counts, 4).completions_per_useful_group == 8


def sizes(*shares):
    return [Expectation(size, Estimate(share, 0, 1), False) for size, share in zip(SIZES, shares, strict=True)]


def test_the_suggested_size_is_where_twice_of_it_hardly_helps():
    assert suggest(sizes(0.4, 0.7, 0.9, 0.95, 0.97, 0.98))[0] == 8
    assert suggest(sizes(0.02, 0.04, 0.08, 0.15, 0.3, 0.5))[0] == 64
    assert "easier prompts" in suggest(sizes(*[0.0] * 6))[1]


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.1 + 0.2, 0.3, 1.0]), min_size=2, max_size=8), st.integers(2, 4))
def test_a_group_has_signal_where_its_rewards_differ_as_in_training(scores, size):
    """Of all groups that could be drawn from the samples; told apart in float32, as the trainer does."""
    size = min(size, len(scores))
    drawn = torch.tensor(list(combinations(scores, size)))  # (groups, G)
    differ = ~no_signal(drawn.flatten(), size).view(-1, size)[:, 0]
    samples = [Sample(0, "", {"a": score}, 1, "stop") for score in scores]
    [count] = count_right([{"prompt": "p"}], samples, "a", 1.0)
    assert (count.right, count.samples) == (scores.count(1.0), len(scores))
    assert expect([count], size).with_signal.value == pytest.approx(float(differ.float().mean()))


def test_partial_credit_teaches_though_nothing_passes(capsys):
    counts = [PassCount(str(i), 0, 8, (3, 3, 2)) for i in range(32)]
    print_probe("letters", counts, 5.0, 8)
    out = " ".join(capsys.readouterr().out.split())
    assert "num_generations 8: 0% of what is generated teaches nothing." in out
    assert "never" in out and "Suggested num_generations: 4" in out  # found in nearly all groups of 4
    assert expect(counts, 16).extrapolated and expect(counts, 16).with_signal.value > 0.99
    alike = [PassCount(str(i), 0, 8, (8,)) for i in range(32)]
    assert expect(alike, 8).with_signal.value == 0 and expect(alike, 16).with_signal.value < 0.2


def test_pass_rates_are_read_as_they_were_written(tmp_path):
    counts = [PassCount(prompt_id("one"), 3, 16), PassCount(prompt_id([{"role": "user", "content": "two"}]), 0, 16)]
    write_pass_rates(tmp_path / "rates.jsonl", counts)
    assert list(read_pass_rates(tmp_path / "rates.jsonl").values()) == counts
    for bad in ("{", '{"prompt_id": "x"}', '{"prompt_id": "x", "right": 3, "samples": 2}'):
        (tmp_path / "bad.jsonl").write_text(bad + "\n")
        with pytest.raises(ValueError, match=r"bad\.jsonl:1"):
            read_pass_rates(tmp_path / "bad.jsonl")


PLUGIN = '''
from grpo_ext import register

@register("lottery")
def lottery(completions, target):
    """Right by chance, the more often the larger the last digit of the target."""
    return [float(sum(map(ord, text)) * 7 % 10 < n % 10) for text, n in zip(completions, target)]
'''


@pytest.mark.slow
def test_the_predicted_share_is_what_training_shows(tiny_folder, tmp_path, capsys):
    (tmp_path / "plugin.py").write_text(PLUGIN)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"""
model_name_or_path: {tiny_folder}
output_dir: {tmp_path / "run"}
task: countdown
num_problems: 400
min_numbers: 3
max_numbers: 3
max_number: 12
max_target: 36
operators: "+-"
reward_plugins: [{tmp_path / "plugin.py"}]
reward_funcs: [lottery, format]
reward_weights: [1.0, 0.25]
num_generations: 4
per_device_train_batch_size: 64
max_completion_length: 12
max_steps: 20
learning_rate: 1.0e-6
use_cpu: true
bf16: false
gradient_checkpointing: false
report_to: none
logging_steps: 1
save_strategy: "no"
disable_tqdm: true
"""
    )
    words = ["--num_prompts", "128", "--samples", "16", "--batch_size", "512"]
    assert main(["probe", "--config", str(recipe), *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "128 prompts, 16 samples each, by lottery" in out and "Suggested num_generations" in out
    counts = list(read_pass_rates(tmp_path / "run" / "pass_rates.jsonl").values())
    expected = expect(counts, 4).with_signal
    assert json.dumps(round(100 * expected.value, 1)) + "%" in out

    from grpo_ext.recipe.load import load_recipe
    from grpo_ext.train import make_trainer

    trainer = make_trainer(load_recipe(recipe))
    trainer.train()
    shown = [row["groups/mixed"] for row in trainer.state.log_history if "groups/mixed" in row]
    assert len(shown) == 20
    error = math.sqrt(statistics.mean(shown) * (1 - statistics.mean(shown)) / (20 * 16))
    low, high = expected.low - 1.96 * error, expected.high + 1.96 * error
    print(f"predicted {expected}, shown {statistics.mean(shown):.3f} +- {error:.3f}")
    assert low <= statistics.mean(shown) <= high
