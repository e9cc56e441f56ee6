"""Runs in which an environment answers.

The tokens that were sampled are those that are trained on, exactly.
"""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset

from grpo_ext.environments.transcript import as_text
from grpo_ext.recipe.problems import RecipeError
from tests.support.episode_gradients import TRUNCATED, Gradients, Noting, oracle
from tests.support.episode_run import ROWS, WORLD, make
from tests.support.logs import entries_with, json_rows
from tests.support.places import REPO

LATER = {**WORLD, "name": "tests.support.slow_worlds:Later"}


def told(rows):
    """For each completion the advantages of its tokens, and which of them the model wrote."""
    return zip(rows.row_advantages.expand(-1, rows.width), rows.loss_mask, strict=True)


@pytest.mark.parametrize("sampling", [{}, TRUNCATED], ids=["plain", "truncated"])
@pytest.mark.parametrize("credit", ["episode", "turn"])
@pytest.mark.parametrize("cut", [{}, {"gradient_accumulation_steps": 2}], ids=["whole", "cut"])
def test_the_gradient_is_that_of_the_tokens_the_model_wrote(
    tiny_folder, tmp_path, sampling, cut, credit
):
    noted = Gradients()
    settings = {
        "max_steps": 1,
        "loss_type": "dapo",
        "environment": {**WORLD, "credit": credit},
        **sampling,
        **cut,
    }
    trainer = make(tiny_folder, tmp_path, [noted], Noting, **settings)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert 1 - 1e-4 < logged["sampling/ratio/min"] <= logged["sampling/ratio/max"] < 1 + 1e-4
    wrote = torch.cat(
        [batch.rows.tool_mask[batch.rows.completion_mask.bool()] for batch in trainer.used]
    )
    assert 0 < wrote.sum() < len(wrote)
    assert (
        trainer.used[0].counts.tokens == 8 * len(trainer.used) * logged["completions/mean_length"]
    )
    of_turns = [
        len(set(row[mask.bool()].tolist())) for b in trainer.used for row, mask in told(b.rows)
    ]
    assert (max(of_turns) > 1) == (credit == "turn")
    wanted = oracle(tiny_folder, noted.weights, trainer.used, **sampling)
    off = noted.distances(wanted)
    assert max(off.values()) < 1e-5, off


@pytest.mark.parametrize(
    "more",
    [
        {"environment": LATER},
        {"environment": {**WORLD, "threads": 3}},
        {"environment": WORLD, "sampler": "process"},
    ],
    ids=["async", "threads", "process"],
)
def test_episodes_of_several_calls_of_generate_are_exact(tiny_folder, tmp_path, more):
    """Their records are put together, with the answers in between."""
    noted = Gradients()
    settings = {"max_steps": 1, "loss_type": "dapo", **more, **TRUNCATED}
    trainer = make(tiny_folder, tmp_path, [noted], Noting, **settings)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert 1 - 1e-4 < logged["sampling/ratio/min"] <= logged["sampling/ratio/max"] < 1 + 1e-4
    assert logged["episodes/turns"] == 3 and logged["episodes/failures"] == 0
    assert logged["episodes/at_turn_limit"] == 0 and 0 < logged["episodes/tokens_per_turn"] <= 4
    wanted = oracle(tiny_folder, noted.weights, trainer.used, **TRUNCATED)
    off = noted.distances(wanted)
    assert max(off.values()) < 1e-5, off


@pytest.mark.parametrize("more", [{}, {"sampler": "process"}], ids=["generate", "process"])
def test_answers_that_are_cut_off_are_trained_around(tiny_folder, tmp_path, more):
    noted = Gradients()
    wordy = {**WORLD, "name": f"{REPO}/tests/support/worlds.py:Wordy", "most": 2}
    settings = {"max_steps": 1, "loss_type": "dapo", "environment": wordy, **more, **TRUNCATED}
    trainer = make(tiny_folder, tmp_path, [noted], Noting, **settings)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert 1 - 1e-4 < logged["sampling/ratio/min"] <= logged["sampling/ratio/max"] < 1 + 1e-4
    assert logged["episodes/answers_cut"] == 1 and logged["episodes/turns"] == 2
    assert logged["episodes/at_length_limit"] == 0
    wanted = oracle(tiny_folder, noted.weights, trainer.used, **TRUNCATED)
    off = noted.distances(wanted)
    assert max(off.values()) < 1e-5, off


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_episodes_that_their_service_broke_have_no_part_in_the_gradient(
    tiny_folder, tmp_path, credit
):
    """One of each group of four; the others get the advantages of a group of three."""
    noted = Gradients()
    world = {"name": "tests.support.failing_services:Quarter", "turn_tokens": 4, "credit": credit}
    settings = {"environment": world, "max_steps": 1, "loss_type": "dapo", "log_samples": 1.0}
    trainer = make(tiny_folder, tmp_path, [noted], Noting, ["environment"], **settings)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["episodes/left_out"] == logged["episodes/failures"] == 0.25
    samples = json_rows(tmp_path / "samples.jsonl")
    scores = [sample["rewards"]["environment"] for sample in samples]
    num_tokens = 0
    for first in range(0, len(samples), 4):
        group = [score for score in scores[first : first + 4] if score is not None]
        assert len(group) == 3
        mean = torch.tensor(group).mean()
        std = torch.tensor(group).std()
        for sample, score in zip(
            samples[first : first + 4], scores[first : first + 4], strict=True
        ):
            if score is None:
                assert sample["advantage"] == 0
                continue
            num_tokens += sample["length"]
            assert sample["advantage"] == pytest.approx(
                float((score - mean) / (std + 1e-4)), abs=1e-4
            )
    assert trainer.used[0].counts.tokens == num_tokens
    wanted = oracle(tiny_folder, noted.weights, trainer.used)
    off = noted.distances(wanted)
    assert max(off.values()) < 1e-5, off


def test_an_evaluation_does_not_score_them(tiny_folder, tmp_path):
    world = {"name": "tests.support.failing_services:Quarter", "turn_tokens": 4}
    settings = {"environment": world, "eval_temperature": 0.0, "log_samples": 1.0, "max_steps": 1}
    trainer = make(tiny_folder, tmp_path, rewards=["environment"], **settings)
    trainer.train()
    trainer.evaluate(Dataset.from_list(ROWS))
    samples = json_rows(tmp_path / "samples.jsonl")
    evaluated = [sample for sample in samples if sample["mode"] == "eval"]
    scores = [sample["rewards"]["environment"] for sample in evaluated]
    assert len(scores) == 8 and scores.count(None) == 2


SERVICES = "tests.support.failing_services"


def recorded(is_async: bool):
    """A reward that notes the completions that it gets, and what it got."""
    asked = []

    def score(completions, turns, **columns):
        asked.extend(tuple(said) for said in turns)
        return [float(len(said[0]) % 3) for said in turns]

    async def score_async(completions, turns, **columns):
        return score(completions, turns)

    return (score_async if is_async else score), asked


@pytest.mark.parametrize("is_async", [False, True])
def test_no_reward_is_called_on_an_episode_that_is_left_out(
    tiny_folder, tmp_path, caplog, is_async
):
    reward, asked = recorded(is_async)
    settings = {
        "environment": {"name": f"{SERVICES}:Quarter", "turn_tokens": 4},
        "eval_temperature": 0.0,
        "log_samples": 1.0,
        "max_steps": 1,
    }
    trainer = make(tiny_folder, tmp_path, rewards=["environment", reward], **settings)
    trainer.train()
    trainer.evaluate(Dataset.from_list(ROWS))
    samples = json_rows(tmp_path / "samples.jsonl")
    with_scores = [sample for sample in samples if sample["reward"] is not None]
    assert len(asked) == len(with_scores) == len(samples) * 3 / 4
    for sample in samples:
        assert (None in sample["rewards"].values()) == (sample["reward"] is None)
    assert set(trainer.parts.judge.asked.values()) == {len(asked)}
    assert "returned None" not in caplog.text  # TRL's warning


def test_an_episode_whose_state_failed_is_no_failure_of_the_reward(tiny_folder, tmp_path):
    settings = {
        "environment": {"name": f"{SERVICES}:Stateless", "turn_tokens": 4},
        "log_samples": 1.0,
        "max_steps": 1,
    }
    trainer = make(tiny_folder, tmp_path, rewards=["environment"], **settings)
    trainer.train()
    scores = [row["rewards"]["environment"] for row in json_rows(tmp_path / "samples.jsonl")]
    assert scores.count(None) * 4 == len(scores)
    assert trainer.parts.judge.failed == {}
    assert trainer.state.log_history[0]["reward"] == 1.0


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_the_share_without_signal_is_that_of_the_advantages(tiny_folder, tmp_path, credit):
    """All episodes earn 1, some in their first turn.

    Only with a credit per turn is there a gradient.
    """
    world = {"name": f"{REPO}/tests/support/worlds.py:Eventually", "turn_tokens": 4}
    settings = {"environment": {**world, "credit": credit}, "max_steps": 2}
    trainer = make(tiny_folder, tmp_path, rewards=["environment"], **settings)
    trainer.train()
    logs = entries_with(trainer, "loss")
    assert len(logs) == 2
    for entry in logs:
        assert entry["reward"] == 1.0 and entry["reward_std"] == 0.0
        assert (entry["grad_norm"] > 0) == (credit == "turn")
        assert (entry["frac_reward_zero_std"] < 1) == (credit == "turn")


def test_both_ways_of_generating_train_alike(tiny_folder, tmp_path):
    """Greedily, so that both draw the same: the fast loop and transformers' own."""
    ends = []
    for fast in (True, False):
        trainer = make(tiny_folder, tmp_path / str(fast), fast_generate=fast, top_k=1)
        trainer.train()
        ends.append(dict(trainer.model.named_parameters()))
    assert all(torch.equal(p, ends[1][name]) for name, p in ends[0].items())


@pytest.mark.parametrize(
    "settings",
    [
        {"steps_per_generation": 3},
        {"group_filter": "refill", "max_staleness": 2, **TRUNCATED},
        {"eval_temperature": 1},
        {"environment": LATER},
        {"environment": LATER, "sampler": "process", **TRUNCATED},
    ],
    ids=["half-used generations", "refill", "evaluation", "async", "process"],
)
def test_a_run_goes_on_bit_for_bit(tiny_folder, tmp_path, settings):
    settings |= {"save_strategy": "steps", "save_steps": 1, "max_steps": 5}
    whole = make(tiny_folder, tmp_path / "whole", **settings)
    whole.train()
    again = make(tiny_folder, tmp_path / "again", **settings)
    again.train(str(tmp_path / "whole" / "checkpoint-2"))
    ours, theirs = (dict(trainer.model.named_parameters()) for trainer in (again, whole))
    assert all(torch.equal(p, theirs[name]) for name, p in ours.items())


def test_evaluation_plays_and_samples_are_conversations(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, eval_temperature=0.0, log_samples=1.0, max_steps=1)
    trainer.train()
    figures = trainer.evaluate(Dataset.from_list(ROWS[:3]))
    assert 0 <= figures["eval_environment"] <= 1 and 9 <= figures["eval_length"] <= 12
    samples = json_rows(tmp_path / "samples.jsonl")
    for sample in samples:
        assert sample["text"].count("\n> ") == 2 and "> 2 of 3" in sample["text"]
        assert sample["length"] <= 12 and sample["rewards"]["environment"] is not None
        assert "earned" not in sample["messages"][0]
    assert (
        len({sample["prompt_id"] for sample in samples})
        == len({sample["seed"] for sample in samples})
        > 3
    )


@pytest.mark.parametrize(
    "settings", [{}, {"mask_truncated_completions": True, "max_completion_length": 24}]
)
def test_samples_hold_what_each_turn_counted_and_earned(tiny_folder, tmp_path, settings):
    trainer = make(
        tiny_folder,
        tmp_path,
        environment={**WORLD, "credit": "turn"},
        eval_temperature=0.0,
        max_steps=1,
        **settings,
    )
    trainer.train()
    trainer.evaluate(Dataset.from_list(ROWS[:3]))
    [evaluated] = entries_with(trainer, "eval_episodes/turns")
    assert 1 <= evaluated["eval_episodes/turns"] <= 3 and evaluated["eval_episodes/failures"] == 0
    assert 0 < evaluated["eval_episodes/tokens_per_turn"] <= 4
    samples = json_rows(tmp_path / "samples.jsonl")
    assert {sample["mode"] for sample in samples} == {"train", "eval"}
    for sample in samples:
        turns = [message for message in sample["messages"] if message["role"] == "assistant"]
        assert as_text(sample["messages"]) == sample["text"]
        left_out = sample["mode"] == "train" and settings and sample["finish_reason"] == "length"
        assert sum(turn["counted_tokens"] for turn in turns) == (
            0 if left_out else sample["length"]
        )
        assert sum(turn["earned"] for turn in turns) == pytest.approx(
            sample["rewards"]["environment"], abs=1e-5
        )
        assert all(
            message.keys() == {"role", "content"}
            for message in sample["messages"]
            if message["role"] == "user"
        )
    assert any(sample["finish_reason"] == "length" for sample in samples) == bool(settings)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"environment": {"name": "gess"}}, "Did you mean 'guess'?"),
        ({"loss_normalization": "micro_batch"}, "needs `loss_normalization: step`"),
        ({"generation_kwargs": {"stop": ["x"]}}, "Remove stop from generation_kwargs"),
        ({"curriculum": "adaptive"}, "Set `curriculum: none`"),
        (
            {"environment": {**WORLD, "credit": "turn"}, "group_filter": "drop"},
            "`credit: turn` needs `group_filter: 'off'`",
        ),
    ],
)
def test_what_an_environment_does_not_go_with_is_refused(tiny_folder, tmp_path, settings, words):
    with pytest.raises(RecipeError) as told:
        make(tiny_folder, tmp_path, **settings)
    assert words in str(told.value)
