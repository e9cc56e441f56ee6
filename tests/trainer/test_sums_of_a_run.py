"""What is summed over a whole run is the same after a resume.

What a step always logs is there in silent steps, too.
"""

from __future__ import annotations

import json
import resource
from contextlib import contextmanager
from statistics import fmean

import pytest

from grpo_ext.trainer.checkpoint import save_result
from tests.support.logs import metric_values
from tests.support.resumed_run import letters, logged, make


def some_fail(completions, **kwargs):
    """Fails on the batches that hold a completion of an odd kind, and then on its row alone."""
    if any(sum(map(ord, text)) % 7 == 0 for text in completions):
        raise ValueError("an odd one")
    return letters(completions)


SETTINGS = {"max_steps": 6, "beta": 0.2, "steps_per_generation": 2, "reward_max_failure_rate": 1.0}


@pytest.mark.parametrize("every", [1, 4])
def test_a_resumed_run_sums_up_the_whole_run(tiny_folder, tmp_path, every):
    whole = make(tiny_folder, tmp_path, some_fail, logging_steps=every, **SETTINGS)
    result = whole.train()
    summary = whole.state.log_history[-1]
    if every == 1:
        losses = metric_values(whole, "loss")
        assert (
            len(losses) == 6 and result.training_loss == pytest.approx(fmean(losses), rel=1e-5) != 0
        )
    assert whole.state.log_history[-1]["rewards/some_fail/failed"] > 2
    for step in (1, 3, 6):
        again = make(tiny_folder, tmp_path / "again", some_fail, logging_steps=every, **SETTINGS)
        found = again.train(str(tmp_path / f"checkpoint-{step}"))
        assert found.training_loss == pytest.approx(result.training_loss, rel=1e-6), step
        assert found.metrics["train_loss"] == found.training_loss
        assert step == 6 or logged(again) == logged(whole), (
            step
        )  # one that is done trains nothing that it could log
    [line] = [
        json.loads(line) for line in (tmp_path / "metrics.jsonl").open() if "train_runtime" in line
    ]
    assert (
        line["total_flos"] == summary["total_flos"] and line["train_loss"] == result.training_loss
    )


def silent(completions, **kwargs):
    return [1.0] * len(completions)


@pytest.mark.parametrize("settings", [{}, {"top_k": 9}, {"steps_per_generation": 4}])
def test_a_step_without_signal_logs_its_entropy(tiny_folder, tmp_path, settings):
    ours, all_rows = (
        make(
            tiny_folder,
            tmp_path / str(skip),
            silent,
            logging_steps=1,
            max_steps=3,
            skip_dead_rows=skip,
            **settings,
        )
        for skip in (True, False)
    )
    ours.train()
    all_rows.train()
    pairs = list(zip(ours.state.log_history, all_rows.state.log_history, strict=True))[:-1]
    for mine, theirs in pairs:
        assert mine.get("frac_reward_zero_std", 1.0) == 1.0 and mine["grad_norm"] == 0
        assert mine["entropy"] == pytest.approx(theirs["entropy"], rel=0.1)
        assert mine.get("sampling/ratio/max", 1.0) == pytest.approx(1.0, abs=1e-4)
        assert mine.get("sampling/ratio/min", 1.0) == pytest.approx(1.0, abs=1e-4)
    assert all(p.grad is None or not p.grad.any() for p in ours.model.parameters())


@contextmanager
def files_of_at_most(size):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size", [0, 300, 100_000])
def test_a_result_that_cannot_be_saved_is_told_and_leaves_no_half_file(tiny_folder, tmp_path, size):
    trainer = make(tiny_folder, tmp_path, save_strategy="no", max_steps=1)
    trainer.train()
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with files_of_at_most(size):
        error = save_result(trainer)
    assert error and "large" in error.lower()
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert not save_result(trainer)
    assert (tmp_path / "model.safetensors").stat().st_size > 100_000 and (
        tmp_path / "trainer_state.json"
    ).exists()
