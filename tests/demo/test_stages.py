"""A job that is stopped goes on where it was, and a changed input redoes what depends on it."""

from __future__ import annotations

import pytest

from grpo_ext.demo.stages import Stages


def play(folder, inputs, fail_in=None):
    """Run three stages; returns what ran, with whether it was begun before."""
    ran = []
    stages = Stages(folder, total=3)

    def work(name):
        def inner(begun):
            ran.append((name, begun))
            if name == fail_in:
                raise KeyboardInterrupt

        return inner

    try:
        for name, value in inputs.items():
            stages.run(name, value, work(name))
    except KeyboardInterrupt:
        pass
    return ran


INPUTS = {"a": 1, "b": 2, "c": 3}


def test_finished_stages_are_not_redone(tmp_path):
    assert play(tmp_path, INPUTS) == [("a", False), ("b", False), ("c", False)]
    assert play(tmp_path, INPUTS) == []


def test_a_stopped_stage_is_begun_again_and_knows_it(tmp_path):
    assert play(tmp_path, INPUTS, fail_in="b") == [("a", False), ("b", False)]
    assert play(tmp_path, INPUTS) == [("b", True), ("c", False)]


@pytest.mark.parametrize("changed, redone", [("a", "abc"), ("b", "bc"), ("c", "c")])
def test_a_change_redoes_what_depends_on_it(tmp_path, changed, redone):
    play(tmp_path, INPUTS)
    ran = play(tmp_path, {**INPUTS, changed: 99})
    assert ran == [(name, False) for name in redone]


def test_a_damaged_record_starts_over(tmp_path):
    play(tmp_path, INPUTS)
    (tmp_path / "stages.json").write_text('{"a": {"finger')
    assert [name for name, _ in play(tmp_path, INPUTS)] == ["a", "b", "c"]
