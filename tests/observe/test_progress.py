"""What the progress bar says of a log."""

from __future__ import annotations

from grpo_ext.observe.progress import evaluation_line, main_figures


def test_main_figures_are_rewards_and_signs_of_health():
    logs = {
        "loss": 0.1,
        "reward": 1.2,
        "rewards/format/mean": 1.0,
        "rewards/format/std": 0.0,
        "grad_norm": 3.0,
        "kl": None,
    }
    assert main_figures(logs) == {"format": 1.0, "loss": 0.1, "reward": 1.2}


def test_an_evaluation_is_told_with_its_errors():
    logs = {
        "eval_countdown": 0.25,
        "eval_countdown_se": 0.03,
        "eval_length": 20.0,
        "eval_runtime": 3.0,
        "epoch": 1.0,
    }
    assert evaluation_line(logs) == "eval_countdown 0.250 ± 0.030, eval_length 20.000"
    assert evaluation_line({"loss": 0.1}) == ""
