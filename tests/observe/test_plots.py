"""Curves: what is drawn is what was logged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.observe.plots import plot_run, series, smooth


def test_series_takes_steps_where_the_metric_was_logged():
    history = [{"step": 1, "a": 2.0}, {"step": 1, "b": 1.0}, {"step": 3, "a": None}, {"step": 4, "a": 5.0}]
    assert series(history, "a") == ([1, 4], [2.0, 5.0])


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.floats(0, 0.99))
def test_smoothing_is_a_weighted_mean_of_the_past(values, weight):
    for t, found in enumerate(smooth(values, weight)):
        weights = [weight ** (t - i) for i in range(t + 1)]
        assert found == pytest.approx(
            sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights), abs=1e-6
        )


def test_a_picture_is_drawn_also_where_metrics_are_missing(tmp_path):
    state = tmp_path / "trainer_state.json"
    logs = [{"step": s, "rewards/r/mean": 0.1 * s, "entropy": 1.0, "loss": 0.0} for s in range(1, 41)]
    state.write_text(json.dumps({"log_history": [*logs, {"step": 20, "eval_r": 0.5, "eval_r_se": 0.1}]}))
    plot_run(state, tmp_path / "curves.png", "r")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
