"""A run whose environment fails: it names file and line, goes on, or stops with a checkpoint and
the reason.
"""

from __future__ import annotations

import inspect
import logging

import pytest

from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.failures import EnvironmentFailure, EnvironmentFailures, refuse_many
from tests.support import worlds
from tests.support.episode_run import make
from tests.support.logs import entries_with

STEP = inspect.getsourcelines(worlds.Failing.step)[1]
PLACE = rf"\({worlds.__file__}:{STEP + 3}, in step\)"
LOGGER = "grpo_ext.environments.failures"


def world(**options):
    usual = {"name": f"{worlds.__file__}:Failing", "turn_tokens": 4, "turns": 4}
    return {**usual, "on_failure": "train", **options}


def run(folder, out, **settings):
    trainer = make(folder, out, rewards=["environment"], **settings)
    trainer.train()
    return trainer


def test_a_step_that_always_fails_stops_the_run_at_once_with_a_checkpoint(tiny_folder, tmp_path):
    words = rf"(?s)Failing: step failed on every call of.*RuntimeError: no idea {PLACE}"
    with pytest.raises(EnvironmentFailure, match=words):
        run(tiny_folder, tmp_path, environment=world())
    assert (tmp_path / "checkpoint-0" / "model.safetensors").is_file()


def test_a_reset_that_always_fails_stops_the_run_before_anything_is_sampled(tiny_folder, tmp_path):
    words = (
        r"(?s)Failing: reset failed on every call of.*KeyError: "
        r"'level' \(.*worlds\.py:\d+, in reset\)"
    )
    with pytest.raises(EnvironmentFailure, match=words):
        run(tiny_folder, tmp_path, environment=world(reset_fails=True))


def test_a_share_of_failed_turns_stops_the_run(tiny_folder, tmp_path):
    """Three of four turns fail: too many, once 64 are there; a step has at most 8 x 4 of them."""
    words = rf"(?s)step failed on \d\d of the last \d\d turns; the allowed share is 0\.5.*{PLACE}"
    with pytest.raises(EnvironmentFailure, match=words):
        run(tiny_folder, tmp_path, environment=world(fails=[0, 1, 2]), max_steps=20)
    assert list(tmp_path.glob("checkpoint-*/model.safetensors"))


@pytest.mark.parametrize("options", [{"fails": [0]}, {"max_failure_rate": 1}])
def test_few_failures_or_a_share_of_1_do_not(tiny_folder, tmp_path, caplog, options):
    with caplog.at_level(logging.WARNING, LOGGER):
        trainer = run(tiny_folder, tmp_path, environment=world(**options), max_steps=4)
    assert trainer.state.global_step == 4
    logged = entries_with(trainer, "loss")
    assert all(entry["episodes/failures"] > 0 for entry in logged)
    warned = [r.message for r in caplog.records if r.name == LOGGER]
    assert len(warned) == 1  # once for each kind
    received = (
        "Failing: step failed. If the model waits for an answer, it receives the error instead."
    )
    assert received in warned[0]
    assert f"{worlds.__file__}:{STEP + 3}, in step" in warned[0]


def test_an_evaluation_stops_too(tiny_folder, tmp_path):
    trainer = make(
        tiny_folder, tmp_path, rewards=["environment"], environment=world(), eval_temperature=0.0
    )
    with pytest.raises(EnvironmentFailure, match=PLACE):
        trainer.evaluate(trainer.train_dataset)


def fail(failures: EnvironmentFailures, seeds, error="ValueError: x (a.py:1, in step)") -> None:
    for seed in seeds:
        failures.failed("step", error, "a turn", seed)


@pytest.mark.parametrize(
    ("ranks", "stops"),
    [
        ([(1, 2), ()], True),  # seeds of the turns that failed, by rank; all did
        ([(1, 1), (2,)], True),
        ([(1, 1), (1,)], False),  # one game, perhaps a bad row of the data
        ([(1, 2), None], False),  # on the second rank a turn worked
    ],
)
def test_every_call_is_that_of_all_ranks(ranks, stops):
    reports = []
    for seeds in ranks:
        failures = EpisodeRules(worlds.Failing, name="World").failures
        if seeds is None:
            failures.succeeded("step")
        fail(failures, seeds or ())
        reports += failures.report()
    if stops:
        with pytest.raises(EnvironmentFailure, match=r"World: step failed on every call.*a\.py:1"):
            refuse_many(reports)
    else:
        refuse_many(reports)


def test_a_report_has_the_calls_since_the_one_before():
    failures = EnvironmentFailures("World", 0.5)
    fail(failures, [1, 2])
    assert [(r.calls, r.failed, r.seeds) for r in failures.report()] == [(2, 2, {"1", "2"})]
    failures.succeeded("step")
    assert [(r.calls, r.failed, r.seeds) for r in failures.report()] == [(1, 0, set())]


def test_a_tool_that_raises_is_named_and_one_that_never_worked_again(caplog):
    failures = EnvironmentFailures("World", 0.5)
    for _ in range(70):
        failures.tool_raised("tool look", "KeyError: 'x' (a.py:3, in look)", {"name": "look"})
    first, again = [record.message for record in caplog.records]
    assert "World: the tool look raised an error" in first and "(a.py:3, in look)" in first
    assert "in each of its 64 calls so far" in again
    caplog.clear()
    failures.succeeded("tool draw")
    for _ in range(70):
        failures.tool_raised("tool draw", "KeyError: 'x' (a.py:9, in draw)", {"name": "draw"})
    assert len(caplog.records) == 1
    refuse_many(failures.report())  # the model may be at fault
