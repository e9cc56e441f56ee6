"""Curves of a run as a picture, from the `trainer_state.json` that every run leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LINE, RAW = {"linewidth": 1.8}, {"linewidth": 0.8, "alpha": 0.3}


def plot_run(state_path: Path, out: Path, outcome_reward: str, smoothing: float = 0.8) -> None:
    """Draw rewards, held-out accuracy, completion length, entropy, groups without signal and gradient norm.

    Args:
        state_path: `trainer_state.json` of a finished run or of a checkpoint.
        out: the PNG to write.
        outcome_reward: whose held-out mean is the accuracy.
        smoothing: weight of the past in the smoothed lines; the raw ones stay behind them.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    history = json.loads(state_path.read_text(encoding="utf-8"))["log_history"]
    figure, axes = plt.subplots(2, 3, figsize=(13, 6.5), layout="constrained")
    rewards = sorted(
        {key for entry in history for key in entry if key.startswith("rewards/") and key.endswith("/mean")}
    )
    panels: list[tuple[str, list[tuple[str, str]]]] = [
        ("reward per function", [(key.split("/")[1], key) for key in rewards]),
        (f"held-out {outcome_reward}, greedy", [(outcome_reward, f"eval_{outcome_reward}")]),
        ("completion length, tokens", [("mean", "completions/mean_length"), ("longest", "completions/max_length")]),
        ("entropy, nats a token", [("entropy", "entropy")]),
        ("share of groups without signal", [("all rewards equal", "frac_reward_zero_std")]),
        ("gradient norm", [("gradient norm", "grad_norm")]),
    ]
    for axis, (title, lines) in zip(axes.flat, panels, strict=True):
        for label, key in lines:
            steps, values = series(history, key)
            draw(axis, steps, values, label, smoothing, errors=series(history, f"{key}_se")[1])
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
        if len(lines) > 1:
            axis.legend(fontsize=9, frameon=False)
    figure.savefig(out, dpi=110)
    plt.close(figure)


def series(history: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it was logged."""
    points = [(entry["step"], entry[key]) for entry in history if entry.get(key) is not None]
    return [step for step, _ in points], [value for _, value in points]


def smooth(values: list[float], weight: float) -> list[float]:
    """Exponential moving average, corrected for its start: the first value is itself."""
    smoothed, total, norm = [], 0.0, 0.0
    for value in values:
        total, norm = weight * total + value, weight * norm + 1
        smoothed.append(total / norm)
    return smoothed


def draw(axis: Any, steps: list[int], values: list[float], label: str, smoothing: float, errors: list[float]) -> None:
    """Few points as dots with error bars where there are any, many as a smoothed line with the raw one behind it."""
    if len(values) <= 25:
        axis.errorbar(steps, values, yerr=errors or None, marker="o", markersize=4, capsize=2, label=label, **LINE)
        return
    (line,) = axis.plot(steps, smooth(values, smoothing), label=label, **LINE)
    axis.plot(steps, values, color=line.get_color(), **RAW)
