"""What becomes of an episode whose environment fails: `on_failure`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from grpo_ext import play
from grpo_ext.environments.episode import Episode, hear_all
from grpo_ext.environments.episode_figures import EpisodeCounts
from grpo_ext.environments.start_episodes import beginning
from tests.support.failing_services import Flaky
from tests.support.forked import LIMIT
from tests.support.slow_worlds import Gathering, MeetingAgain

ARGS = SimpleNamespace(max_completion_length=100, chat_template_kwargs=None, generation_kwargs=None)
ROW = {"prompt": [{"role": "user", "content": "Play."}], "seed": 5}


@pytest.fixture
def begin(tiny_folder):
    """Returns a function that begins an episode of `Flaky`."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    Flaky.made = 0

    def begin_one(**options) -> Episode:
        world = {"name": "tests.support.failing_services:Flaky", **options}
        [one] = beginning({"": world}, tokenizer, [tokenizer.eos_token_id], ARGS)([ROW])
        return one

    return begin_one


def say(episode: Episode, *texts: str) -> None:
    for text in texts:
        episode.take_turn({"role": "assistant", "content": text}, text)
        episode.hear()


def contents(episode: Episode) -> list[str]:
    return [message["content"] for message in episode.messages]


@pytest.mark.parametrize("options", [{}, {"threads": 2}])
def test_mask_ends_the_episode_and_leaves_it_out(begin, options):
    one = begin(fails="second step", **options)
    say(one, "a")
    assert not one.left_out and not one.ended
    say(one, "b")
    assert one.left_out and one.ended and not one.truncated
    assert contents(one) == ["a", "1 a", "b"]


def test_an_episode_whose_reset_failed_ends_with_its_first_turn(begin):
    one = begin(fails="reset")
    assert one.left_out and not one.ended
    say(one, "a")
    assert one.ended and one.environment.heard == [] and len(one.states) == 2


def test_train_gives_the_model_the_error(begin):
    one = begin(fails="second step", on_failure="train")
    say(one, "a", "b", "c")
    assert contents(one)[3] == "error: ConnectionError: the service is gone" and not one.left_out
    assert one.world.failures == 1 and one.world.broken


@pytest.mark.parametrize("options", [{}, {"threads": 2}])
@pytest.mark.parametrize("fails", ["reset", "first step", "second step", "third step"])
def test_retry_plays_the_episode_again_from_its_seed(begin, fails, options):
    whole = begin(fails="nothing", on_failure="retry")
    say(whole, "a", "b", "c")
    Flaky.made = 0
    again = begin(fails=fails, on_failure="retry", **options)
    broken = again.environment
    say(again, "a", "b", "c")
    assert contents(again) == contents(whole) and again.prompt == whole.prompt
    assert again.columns() == whole.columns() and again.ended and not again.left_out
    assert again.environment.heard == ["a", "b", "c"]
    if fails != "reset":
        assert again.environment is not broken and broken.heard != ["a", "b", "c"]


def gone(rules):
    """Make no new environment."""
    raise ConnectionRefusedError("the service is gone")


def test_an_episode_is_left_out_if_no_new_environment_can_be_made(begin, monkeypatch):
    one = begin(fails="second step", on_failure="retry")
    monkeypatch.setattr(type(one.rules), "new_environment", gone)
    say(one, "a", "b")
    assert one.left_out and one.ended


def test_a_thread_that_cannot_start_is_a_failure(begin, monkeypatch):
    one = begin(fails="nothing", threads=2, on_failure="mask")

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("grpo_ext.environments.background.Thread.start", refuse)
    say(one, "a")
    assert one.left_out and one.ended


@pytest.mark.parametrize("options", [{"every": True}, {"forgets": True}])
def test_an_episode_that_cannot_be_played_again_is_left_out(begin, options):
    """Each new environment fails too, or answers otherwise than the model has read."""
    one = begin(fails="second step", on_failure="retry", **options)
    say(one, "a", "b")
    assert one.left_out and one.ended and contents(one) == ["a", "1 a", "b"]
    assert Flaky.made == 4  # the probe, the first one, and two more


@pytest.mark.parametrize("fails", ["reset", "second step"])
def test_failures_and_seconds_of_replaced_instances_count(begin, fails):
    """One failure is of the first instance, and each of two further ones adds one if it fails."""
    worked = begin(fails=fails, on_failure="retry")
    say(worked, "a", "b", "c")
    assert not worked.left_out and worked.world.failures == 0
    counts = EpisodeCounts.of(worked)
    assert counts.failures == 1 and counts.seconds > worked.world.seconds
    Flaky.made = 0
    failed = begin(fails=fails, on_failure="retry", every=True)
    say(failed, "a", "b")
    assert failed.left_out and EpisodeCounts.of(failed).failures == 3


def test_an_instance_that_cannot_be_made_is_a_failure(begin, monkeypatch):
    one = begin(fails="second step", on_failure="retry")
    monkeypatch.setattr(type(one.rules), "new_environment", gone)
    say(one, "a", "b")
    assert EpisodeCounts.of(one).failures == 3


def test_a_failure_on_each_turn_counts_each_time(begin):
    one = begin(fails="first step", on_failure="retry")
    say(one, "a")
    one.environment._fails = "second step"
    say(one, "b", "c")
    assert one.end == "environment" and EpisodeCounts.of(one).failures == 2


def test_episodes_of_a_generation_are_played_again_together(tiny_folder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    world = {
        "name": "tests.support.slow_worlds:MeetingAgain",
        "most": 3,
        "threads": 4,
        "step_timeout": LIMIT,
        "on_failure": "retry",
    }
    MeetingAgain.failed = set()
    MeetingAgain.gatherings = tuple(Gathering(4) for _ in range(3))
    begin_all = beginning({"": world}, tokenizer, [tokenizer.eos_token_id], ARGS)
    episodes = begin_all([{**ROW, "seed": seed} for seed in range(4)])
    for text in ("a", "b", "c"):
        for episode in episodes:
            episode.take_turn({"role": "assistant", "content": text}, text)
        hear_all(episodes)
    assert [gathering.come for gathering in MeetingAgain.gatherings] == [4, 4, 4]
    for episode in episodes:
        assert contents(episode) == ["a", "1 of 3", "b", "2 of 3", "c"]
        assert episode.end == "environment" and episode.failures == 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("threads", [None, 2])
def test_a_late_tool_does_not_mask_and_a_late_step_does(is_async, threads):
    world = {
        "name": "tests.support.failing_services:Late",
        "is_async": is_async,
        "step_timeout": 0.05,
    }
    if threads:
        world["threads"] = threads
    call = {"name": "look_async" if is_async else "look", "arguments": {}}
    late = "error: timed out after 0.05 s"
    played = play(world, [call] * 4)
    assert [m["content"] for m in played.messages] == ["", late, "", late, ""]
    assert played.end == "failures" and played.counts.failures == 3
    assert not played.counts.left_out
    stepped = play(world, ["a", "b"])
    assert stepped.end == "failures" and stepped.counts.failures == 1 and stepped.counts.left_out
