"""The best constant answer of an evaluation, against a search through all pairs of answers and
rows.
"""

from __future__ import annotations

from collections import Counter

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from grpo_ext import GRPOExtTrainer, register
from grpo_ext.evaluation.completions import Completion
from grpo_ext.evaluation.constant import (
    CANDIDATES,
    TRIAL_ROWS,
    answer_all,
    beats_constant,
    best_constant,
    candidates,
    constant_doubts,
    constant_figures,
    constant_sentence,
    constant_sentences,
    rewards_for_constants,
    short,
)
from grpo_ext.evaluation.evaluate import evaluate
from grpo_ext.evaluation.score import Sample
from grpo_ext.rewards import build
from grpo_ext.rewards.guard import Guard, guard_rewards
from tests.support.logs import json_rows
from tests.support.tiny_run import tiny_arguments


def near(completions, wanted, **kwargs):
    """Falls with the distance of the number of words from the row's."""
    return [1 / (1 + abs(len(t.split()) - w)) for t, w in zip(completions, wanted, strict=True)]


def short_ones(completions, **kwargs):
    return [float(len(text) < 12) for text in completions]


def rows_of(wanted):
    return [{"prompt": f"Row {i}: {w} words.", "wanted": w} for i, w in enumerate(wanted)]


def guards(*functions, **options):
    found = guard_rewards(list(functions), **options)
    return {guard.__name__: guard for guard in found}


def samples_of(rows, texts, function=near):
    scores = [
        function(completions=[t], wanted=[r["wanted"]])[0] for r, t in zip(rows, texts, strict=True)
    ]
    return [
        Sample(i, text, {"near": score}, len(text))
        for i, (text, score) in enumerate(zip(texts, scores, strict=True))
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=2, max_size=12))
def test_it_is_the_best_of_the_candidates_on_all_rows(pairs):
    rows = rows_of([wanted for wanted, _ in pairs])
    texts = ["word " * count for _, count in pairs]
    samples = samples_of(rows, texts)
    rewards = rewards_for_constants(guards(near))
    best = best_constant(rows, samples, rewards, "near")

    def mean(text):
        return sum(near([text] * len(rows), [row["wanted"] for row in rows])) / len(rows)

    tried = candidates(samples, "near")
    assert mean(best.text) == pytest.approx(max(mean(sample.text) for sample in tried))
    figures = constant_figures(answer_all(rows, best, rewards), ["near"])
    assert figures["near_constant"] == pytest.approx(mean(best.text))


@given(st.lists(st.sampled_from("abcdefghijklmno"), min_size=1, max_size=60))
def test_candidates_are_few_and_among_them_are_the_most_frequent(texts):
    samples = [Sample(i, text, {"r": float(ord(text))}, 1) for i, text in enumerate(texts)]
    found = [sample.text for sample in candidates(samples, "r")]
    assert len(found) == len(set(found)) <= CANDIDATES
    counts = Counter(texts)
    assert counts[found[0]] == max(counts.values()) and max(texts) in found


def test_a_reward_that_a_constant_satisfies_is_beaten_by_it():
    """Six words on average, whatever the prompt asks for; the constant answer of six words earns as
    much.
    """
    wanted = [2, 4, 6, 8, 6, 6, 5, 7] * 5
    rows = rows_of(wanted)
    samples = samples_of(rows, ["word " * (5 + i % 3) for i in range(len(rows))])
    rewards = guards(near)
    best = best_constant(rows, samples, rewards_for_constants(rewards), "near")
    assert len(best.text.split()) == 6
    model = sum(sample.rewards["near"] for sample in samples) / len(rows)
    given_to_all = constant_figures(
        answer_all(rows, best, rewards_for_constants(rewards)), ["near"]
    )
    figures = {"near": model, "near_se": 0.03, **given_to_all}
    assert beats_constant(figures, "near") is False
    assert "Not clearly better than a constant answer: near is" in constant_sentence(
        figures, "near"
    )


def test_an_answer_to_the_prompt_beats_every_constant():
    rows = rows_of(list(range(1, 21)))
    samples = samples_of(rows, ["word " * row["wanted"] for row in rows])
    rewards = rewards_for_constants(guards(near))
    best = best_constant(rows, samples, rewards, "near")
    figures = {"near": 1.0, "near_se": 0.0}
    figures |= constant_figures(answer_all(rows, best, rewards), ["near"])
    assert figures["near_constant"] < 0.5 and beats_constant(figures, "near") is True
    sentence = constant_sentence(figures, "near", best.text)
    assert not sentence.startswith("A constant") and "the best constant answer ('word" in sentence


@pytest.mark.parametrize(
    ("figures", "key", "beats"),
    [
        ({"r": 0.6, "r_constant": 0.5}, "r", True),
        ({"r": 0.5, "r_constant": 0.5}, "r", False),
        ({"r": 0.6, "r_se": 0.03, "r_constant": 0.5, "r_constant_se": 0.05}, "r", False),
        ({"r": 0.6, "r_se": 0.03, "r_constant": 0.5, "r_constant_se": 0.03}, "r", True),
        ({"r": 0.6}, "r", None),
        ({"r_constant": 0.6}, "r", None),
        (
            {"eval_rewards/r/mean": 0.4, "eval_rewards/r/constant": 0.5},
            "eval_rewards/r/mean",
            False,
        ),
    ],
)
def test_a_model_beats_a_constant_beyond_the_standard_errors(figures, key, beats):
    assert beats_constant(figures, key) is beats


def test_equal_rows_episodes_and_rewards_that_cost_much_are_left_out():
    rows = [{"prompt": "the same", "wanted": 3}] * 5
    samples = samples_of(rows, ["a b c"] * 5)
    cheap = rewards_for_constants(guards(near))
    assert best_constant(rows, samples, cheap, "near") is None
    others = rows_of([1, 2])
    episode = [Sample(0, "a", {"near": 1.0}, 1, episode={"messages": []})]
    assert best_constant(others, episode, cheap, "near") is None
    assert best_constant(others, [], cheap, "near") is None

    async def later(completions, **kwargs):
        return [0.0] * len(completions)

    judge = build("judge", url="http://127.0.0.1:9/v1", model="m", rubric="Grade it.")
    assert not rewards_for_constants(guards(later, judge))


def test_the_cost_is_bounded():
    calls = []

    def counted(completions, wanted, **kwargs):
        calls.append(len(completions))
        return near(completions, wanted)

    rows = rows_of([i % 9 for i in range(500)])
    samples = [Sample(i, f"text {i}", {"counted": 0.0}, 2) for i in range(500)]
    rewards = rewards_for_constants(guards(counted))
    answer_all(rows, best_constant(rows, samples, rewards, "counted"), rewards)
    assert sum(calls) <= CANDIDATES * TRIAL_ROWS + len(rows)


def test_failures_and_slow_rows_are_not_counted_as_failures_of_the_run():
    def broken(completions, **kwargs):
        raise RuntimeError("a bug")

    guard = Guard(broken, max_failure_rate=0.0)
    assert guard.try_out(completions=["a"] * 400) == [None] * 400
    assert guard.failed == guard.asked == 0 and guard.failure is None


def test_hostile_texts_change_no_terminal():
    assert short("a\x1b[31m\n\nb  c") == "a[31m b c"
    assert len(short("x" * 500)) < 80


def test_the_last_evaluation_of_each_data_set_counts():
    history = [
        {"eval_easy_r": 0.1, "eval_easy_r_constant": 0.2, "step": 1},
        {"eval_hard_r": 0.5, "eval_hard_r_constant": 0.2, "step": 1},
        {"eval_easy_r": 0.3, "eval_easy_r_constant": 0.2, "step": 2},
        {"eval_easy_other": 0.3, "eval_easy_other_constant": 0.9, "step": 2},
        {"reward": 0.1, "step": 3},
    ]
    first, second = constant_sentences(history, "r", "text")
    assert first.startswith("eval_easy_r is 0.300") and second.startswith("eval_hard_r is 0.500")
    assert "text" not in first
    assert constant_sentences([], "r") == []


def test_the_command_eval_names_outcomes_that_a_constant_earns_as_well():
    figures = {
        "r": 0.5,
        "r_constant": 0.6,
        "format": 1.0,
        "format_constant": 1.0,
        "tasks/easy/r": 0.9,
        "tasks/easy/r_constant": 0.2,
        "tasks/hard/r": 0.1,
        "tasks/hard/r_constant": 0.2,
    }
    first, second = constant_doubts(figures, ["r"])
    assert "r is 0.500" in first and "tasks/hard/r is 0.100" in second
    assert all(
        sentence.startswith("Not clearly better than a constant") for sentence in (first, second)
    )


def test_an_evaluation_of_a_recipe_has_it():
    rows = rows_of([3, 3, 4, 5])

    def complete(asked, decoding, progress):
        return [[Completion("one two three", [1, 2, 3])] * decoding.num_samples for _ in asked]

    rewards = guards(near)
    summary, _ = evaluate(complete, rows, rewards, ["near"], max_new_tokens=8, num_samples=2)
    for part in ("greedy", "sampled"):
        assert summary[part]["near_constant"] == pytest.approx(summary[part]["near"])
    off, _ = evaluate(
        complete, rows, rewards, ["near"], max_new_tokens=8, num_samples=0, constants=False
    )
    assert "near_constant" not in off["greedy"]


@pytest.mark.parametrize("decodes", [True, False])
def test_every_evaluation_of_a_run_logs_it_and_the_end_compares(
    decodes, tiny_folder, tmp_path, capsys
):
    register("any_text")(lambda completions, **kwargs: [1.0] * len(completions))
    register("by_length")(
        lambda completions, wanted, **kwargs: [
            1 / (1 + abs(len(text) - n)) for text, n in zip(completions, wanted, strict=True)
        ]
    )
    args = tiny_arguments(
        tmp_path,
        per_device_eval_batch_size=8,
        max_completion_length=6,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        eval_temperature=0.0 if decodes else None,
        reward_weights=[0.5, 1.0],
    )
    rows = Dataset.from_list(rows_of([3, 9, 4, 20, 7, 7, 8, 1]))
    trainer = GRPOExtTrainer(
        str(tiny_folder),
        ["any_text", "by_length"],
        args,
        rows,
        rows,
        processing_class=AutoTokenizer.from_pretrained(tiny_folder, padding_side="left"),
    )
    trainer.train()
    lines = json_rows(tmp_path / "metrics.jsonl")
    key = "eval_by_length_constant" if decodes else "eval_rewards/by_length/constant"
    logged = [row for row in lines if key in row]
    assert len(logged) == 2
    for row in logged:
        assert 0 < row[key] <= 1
        assert row[key.replace("by_length", "any_text")] == 1.0
    said = capsys.readouterr().out
    assert "given to every prompt, earns" in said
    assert "given to every prompt, earns" in (tmp_path / "README.md").read_text()
