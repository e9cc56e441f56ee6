"""What becomes of an episode whose environment fails: `on_failure`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from grpo_ext.environments.episode import Episode
from grpo_ext.environments.start_episodes import beginning
from tests.support.failing_services import Flaky

ARGS = SimpleNamespace(max_completion_length=100, chat_template_kwargs=None)
ROW = {"prompt": [{"role": "user", "content": "Play."}], "seed": 5}


@pytest.fixture
def begin(tiny_folder):
    """Returns a function that begins an episode of `Flaky`."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    Flaky.made = 0

    def begin_one(**options) -> Episode:
        world = {"name": "tests.support.failing_services:Flaky", **options}
        [one] = beginning(world, tokenizer, [tokenizer.eos_token_id], ARGS)([ROW])
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


def test_an_episode_is_left_out_if_no_new_environment_can_be_made(begin, monkeypatch):
    one = begin(fails="second step", on_failure="retry")

    def gone():
        raise ConnectionRefusedError("the service is gone")

    monkeypatch.setattr(type(one.rules), "new_environment", lambda rules: gone())
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
