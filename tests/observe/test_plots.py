"""Curves: what is drawn is what was logged."""

from __future__ import annotations

import json
import math
from statistics import fmean, pstdev, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.evaluation.table import gained
from grpo_ext.observe.panels import PANELS, Panel, by_metric, more_panels, panels, series
from grpo_ext.observe.plots import plot_runs, smooth
from grpo_ext.observe.read_run import RunData, read_run, reward_curves


def test_a_column_has_the_steps_where_the_metric_was_logged_and_gaps_where_it_was_not_finite():
    rows = [
        {"step": 1, "a": 2.0},
        {"step": 1, "b": 1.0},
        {"step": 3, "a": None, "not_finite": {"a": "nan"}},
    ]
    assert by_metric([*rows, {"step": 4, "a": 5.0}])["a"] == ([1, 3, 4], [2.0, None, 5.0])


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.floats(0, 0.99))
def test_smoothing_is_a_weighted_mean_of_the_past(values, weight):
    for t, found in enumerate(smooth(values, weight)):
        weights = [weight ** (t - i) for i in range(t + 1)]
        assert found == pytest.approx(
            sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights), abs=1e-6
        )


def test_smoothing_leaves_gaps_out():
    found = smooth([1.0, math.nan, 1.0], 0.5)
    assert found[0] == found[2] == 1.0 and math.isnan(found[1])


ROWS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.lists(
            st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0, 1.5])), min_size=2, max_size=4
        ),
    ),
    min_size=1,
    max_size=12,
)


def test_a_reward_named_reward_is_not_the_weighted_sum():
    curves = reward_curves(
        [{"step": 1, "mode": "train", "group": 0, "reward": 0.25, "rewards": {"reward": 1.0}}]
    )
    assert curves["reward"].values == [0.25]


@settings(deadline=None)
@given(ROWS)
def test_figures_of_a_step_are_means_over_its_groups(groups):
    groups = sorted(groups, key=lambda group: group[0])
    rows = []
    for number, (step, scores) in enumerate(groups):
        for score in scores:
            rows.append(
                {
                    "step": step,
                    "mode": "train",
                    "group": number,
                    "reward": score,
                    "rewards": {"a": score},
                }
            )
            rows.append(
                {
                    "step": step,
                    "mode": "eval",
                    "group": number,
                    "reward": 9.0,
                    "rewards": {"a": 9.0},
                }
            )
    curve = reward_curves(rows)["a"]
    assert curve.steps == sorted({step for step, _ in groups})
    for at, step in enumerate(curve.steps):
        own = [scores for s, scores in groups if s == step]
        known = [[v for v in scores if v is not None] for scores in own]
        known = [scores for scores in known if scores]
        assert curve.values[at] == (pytest.approx(fmean(map(fmean, known))) if known else None)
        assert curve.spread[at] == (pytest.approx(fmean(map(pstdev, known))) if known else None)
        means = [fmean(scores) for scores in known]
        if len(means) > 1:
            error = stdev(means) / len(means) ** 0.5
            assert curve.sampling_errors[at] == pytest.approx(error, rel=1e-6, abs=1e-9)
        else:
            assert curve.sampling_errors[at] is None
    found = [v for _, scores in groups for v in scores if v is not None]
    assert curve.bounds == ((min(found), max(found)) if found else None)


def test_every_number_that_was_logged_is_in_some_panel(tmp_path):
    logged = {
        "reward": 1.0,
        "rewards/r/mean": 0.5,
        "entropy": 1.0,
        "kl": 0.1,
        "odd/one": 3.0,
        "eval_r": 0.5,
        "eval_r_se": 0.1,
    }
    run = RunData("a", tmp_path, [{"step": 1, **logged}])
    first = panels(run)
    rest = more_panels(run)
    assert {panel.title for panel in rest} == {"odd/one"}
    held_out = next(panel for panel in first if panel.title == "Held-out rewards")
    assert [(curve.label, curve.values, curve.errors) for curve in held_out.series] == [
        ("r", [0.5], [0.1])
    ]
    assert len(first) == 5


@pytest.mark.parametrize(
    ("first", "last", "outcomes", "shown"),
    [
        ({"r": 0.2, "pass@1": 0.0}, {"r": 0.5, "pass@1": 0.0}, ["r"], False),
        ({"r": 0.2, "pass@1": 0.1}, {"r": 0.5, "pass@1": 0.0}, ["r"], True),  # a full mark before
        ({"r": 0.0, "pass@1": 0.0}, {"r": 0.0, "pass@1": 0.0}, ["r"], True),  # 0 or 1, never right
        ({"r": -1.0, "pass@1": 0.0}, {"r": -1.0, "pass@1": 0.0}, ["r"], True),
        ({"r": 0.2, "pass@1": 0.0}, {"r": 0.5, "pass@1": 0.0}, ["other"], True),
        (
            {"tasks/t/r": 0.2, "tasks/t/pass@1": 0.0, "tasks/t/pass@8": 0.0},
            {"tasks/t/r": None, "tasks/t/pass@1": None, "tasks/t/pass@8": 0.0},
            ["other", "r"],
            False,
        ),
        (
            {"format": 0.9, "r": 0.0, "pass@1": 0.0},
            {"format": 0.9, "r": 0.0, "pass@1": 0.0},
            ["r", "format"],
            True,
        ),
    ],
)
def test_pass_rates_of_a_graded_reward_that_never_gave_1_are_not_shown(
    first, last, outcomes, shown, tmp_path
):
    rows = []
    for step, figures in enumerate([first, last]):
        logged = {f"eval_{name}": value for name, value in figures.items()}
        errors = {f"{name}_se": 0.05 for name in logged}
        rows.append({"step": step, "not_finite": dict.fromkeys(logged), **logged, **errors})
    run = RunData("a", tmp_path, rows, about={"outcomes": outcomes})
    curves = [curve.label for panel in panels(run) for curve in panel.series]
    assert any("pass@" in label for label in curves) == shown
    gains = [gain.name for gain in gained(rows, ["format", "r"], outcomes)]
    assert any("pass@" in name for name in gains) == shown
    assert len(curves) > shown and len(gains) <= len(curves)


def panel_of(title, *curves):
    return Panel(
        title,
        "",
        [series(label, (list(range(1, len(values) + 1)), values)) for label, values in curves],
    )


@pytest.mark.parametrize(
    "title, curves, silent",
    [
        ("Clipped tokens", [("low", [0.0, 0.0]), ("high", [0.0, None, 0.0])], True),
        ("Clipped tokens", [("low", [0.0, 0.0]), ("high", [0.0, 0.1])], False),
        ("Entropy", [("entropy", [1.25])], True),
        ("Entropy", [("mean", [None, 2.0]), ("most", [3.0])], True),
        ("KL", [("KL", [None, None])], True),
        ("Loss", [("loss", [-1.0, -1.0])], True),
        ("Loss", [("loss", [-1.0, -1.1])], False),
        ("Reward", [("reward", [0.0, 0.0])], False),  # that it is never more than 0 says a lot
    ],
)
def test_a_curve_that_shows_nothing_is_left_out(title, curves, silent):
    assert panel_of(title, *curves).silent == silent


def run_of(folder, rows, metrics=()):
    return RunData(
        "a", folder, list(metrics), curves=reward_curves({"mode": "train", **row} for row in rows)
    )


def test_one_reward_is_drawn_once_and_its_band_ends_at_what_it_gave(tmp_path):
    rows = [
        {"step": s, "group": 0, "reward": r, "rewards": {"a": r}}
        for s in (1, 2)
        for r in (0.0, 0.0, 0.0, 1.0)
    ]
    [panel] = panels(run_of(tmp_path, rows))
    [curve] = panel.series
    assert panel.title == "Reward" and curve.bounds == (0.0, 1.0)
    assert (
        curve.values[0] - curve.spread[0] < 0
    )  # without the bounds the band would show rewards that there are not
    rows = [{**row, "reward": 2 * row["reward"]} for row in rows]
    assert [p.title for p in panels(run_of(tmp_path, rows))] == ["Reward", "Reward by function"]


def test_groups_are_those_that_the_run_counted(tmp_path):
    """With partial credit a group in which nothing passes has signal, in the report as in the
    metrics.
    """
    logged = {
        "groups/mixed": 1.0,
        "groups/all_right": 0.0,
        "groups/all_wrong": 0.0,
        "frac_reward_zero_std": 0.25,
    }
    rows = [{"step": 1, "group": 0, "reward": r, "rewards": {"a": r}} for r in (0.1, 0.2)]
    [found] = [
        p
        for p in panels(run_of(tmp_path, rows, [{"step": 1, **logged}]))
        if p.title.startswith("Groups")
    ]
    assert [(s.label, s.values) for s in found.series] == [
        ("differ", [1.0]),
        ("equal and right", [0.0]),
        ("equal and wrong", [0.0]),
        ("equal sum", [0.25]),
    ]
    assert not more_panels(run_of(tmp_path, rows, [{"step": 1, **logged}]))


def test_phases_that_never_take_a_millisecond_are_left_out(tmp_path):
    logged = [
        {"step": 1, "step_time": 2.0, "time/train": 1.0, "time/sync": 5e-6, "time/waiting": 9e-4},
        {"step": 2, "step_time": 2.0, "time/train": 1.0, "time/sync": 5e-6, "time/waiting": 0.002},
    ]
    [found] = [panel for panel in panels(RunData("a", tmp_path, logged))]
    assert [curve.label for curve in found.series] == ["whole step", "train", "waiting"]
    assert not more_panels(RunData("a", tmp_path, logged))


def test_no_label_of_a_curve_has_a_comma():
    """The page joins the labels of equal curves with commas."""
    assert not [label for layout in PANELS for label in layout["curves"] if "," in label]


def test_pictures_are_drawn_also_where_metrics_are_missing(tmp_path):
    logs = [
        {"step": s, "rewards/r/mean": 0.1 * s, "entropy": 1.0, "loss": 0.0} for s in range(1, 41)
    ]
    rows = [*logs, {"step": 40, "eval_r": 0.5, "eval_r_se": 0.1}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    plot_runs([read_run(tmp_path, max_samples=0)], tmp_path / "curves.png", most=6)
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    logs = [row | {"rewards/$\\bad{$/mean": 0.5 * row["step"]} for row in logs]  # no formula
    runs = [RunData(name, tmp_path, logs) for name in ("a", r"$\frac{$")]
    plot_runs([*runs, RunData("nothing", tmp_path, [])], tmp_path / "both.svg")
    assert "</svg>" in (tmp_path / "both.svg").read_text()
