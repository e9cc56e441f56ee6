"""Figures of episodes: means over episodes, and calls by tool."""

import pytest

from grpo_ext import play
from grpo_ext.environments.episode_figures import EpisodeCounts, episode_figures
from grpo_ext.evaluation.by_task import figures_of
from grpo_ext.evaluation.evaluate_recipe import logged_fields
from grpo_ext.evaluation.score import Sample
from grpo_ext.observe.panels import by_metric, held_out, is_of_episodes
from tests.support.worlds import Counting, Faulty

CALL = {"name": "check", "arguments": {"expression": "8 + 5 - 3"}}
ROW = {"nums": [3, 5, 8], "target": 10}


def counts_of(**changes) -> EpisodeCounts:
    usual = {
        "turns": 2,
        "at_turn_limit": False,
        "at_length_limit": False,
        "cut_answers": 0,
        "failures": 0,
        "left_out": False,
        "tokens": 10,
        "seconds": 0.5,
        "calls": 0,
        "failed_calls": 0,
        "calls_by_tool": {},
    }
    return EpisodeCounts(**{**usual, **changes})


def test_figures_are_means_per_episode_and_tokens_per_turn():
    counts = [
        counts_of(),
        counts_of(
            turns=6, at_turn_limit=True, cut_answers=3, failures=1, left_out=True, seconds=1.5
        ),
    ]
    assert episode_figures(counts) == {
        "episodes/turns": 4,
        "episodes/at_turn_limit": 0.5,
        "episodes/at_length_limit": 0.0,
        "episodes/answers_cut": 1.5,
        "episodes/failures": 0.5,
        "episodes/left_out": 0.5,
        "episodes/tokens_per_turn": 2.5,
        "episodes/environment_time": 1.0,
        "episodes/turns/std": pytest.approx(8**0.5),
        "episodes/turns/max": 6,
        "episodes/environment_time/std": pytest.approx(0.5**0.5),
        "episodes/environment_time/max": 1.5,
    }
    assert episode_figures(counts[:1])["episodes/turns/std"] == 0


def test_calls_are_counted_by_tool():
    played = play("check", [CALL, {"name": "chek"}, "done"], ROW)
    other = play("check", ["done"], ROW)
    figures = episode_figures([played.counts, other.counts])
    assert figures["tools/call_frequency"] == 1 and figures["tools/failure_frequency"] == 0.5
    assert figures["tools/check/call_frequency"] == 0.5
    assert figures["episodes/turns"] == 2 and figures["episodes/environment_time"] > 0


def test_failures_and_the_limit_of_turns_are_counted():
    failed = play(Faulty("raise"), ["a"]).counts
    limited = play({"name": f"{Counting.__module__}:Counting", "turns": 1}, ["a"]).counts
    figures = episode_figures([failed, limited])
    assert figures["episodes/failures"] == figures["episodes/left_out"] == 0.5
    assert figures["episodes/at_turn_limit"] == 0.5


def test_an_evaluation_has_figures_of_episodes_and_the_messages():
    rows = [{"prompt": "a", "task": "x"}, {"prompt": "b", "task": "y"}]
    messages = [{"role": "assistant", "content": "hello"}]
    samples = []
    for number, turns in enumerate((1, 3)):
        counts = counts_of(turns=turns)
        episode = {"prompt": [], "seed": 7, "messages": messages}
        sample = Sample(number, "hello", {"r": 1.0}, 10, episode=episode, counts=counts)
        samples.append(sample)
    figures = figures_of(rows, samples, ["r"], ["r"], 1)
    assert figures["episodes/turns"] == 2 and figures["tasks/y/episodes/turns"] == 3
    assert figures["r"] == 1 and "episodes/turns_se" not in figures
    fields = logged_fields(samples[0])
    assert fields["messages"] == messages and fields["seed"] == 7
    assert fields.keys() & {"episode", "counts", "ids"} == set()


@pytest.mark.parametrize(
    "key",
    [
        "eval_episodes/turns",
        "eval_tools/check/call_frequency",
        "eval_math_episodes/turns",
        "eval_tasks/a/episodes/turns",
        "eval_math_tasks/tools/tools/call_frequency",
    ],
)
def test_figures_of_episodes_are_no_rewards(key):
    assert is_of_episodes(key)
    rewards = {"eval_game": 0.5, "eval_tasks/tools/reward": 1.0, "eval_math_tools": 2.0}
    columns = by_metric([{"step": 1, key: 3.0, **rewards}])
    drawn = [curve.label for panel in held_out(columns) for curve in panel.series]
    assert drawn == ["game", "math_tools", "tools/reward"]
