"""A whole demo in small, with real processes.

It finishes, it can be stopped, and what is done stays done.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_ext.demo.demos import DEMOS
from grpo_ext.demo.pipeline import completions_rows, run_demo
from tests.support.forked import LIMIT, Forked
from tests.support.places import REPO
from tests.support.recipe_sizes import small_recipe

pytestmark = pytest.mark.slow

SMALL = {
    "countdown/tiny.yaml": {
        "max_steps": 6,
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 24,
        "save_steps": 2,
        "eval_steps": 3,
        "num_problems": 64,
        "max_eval_samples": 12,
    },
    "countdown/tiny-sft.yaml": {"max_steps": 3},
}


def test_completions_with_line_separators_are_shown(tmp_path):
    for when, score in (("before", 0.0), ("after", 1.0)):
        row = {
            "prompt": "p",
            "text": f"{when} a\u2028b\x85c\x1cd",
            "part": "greedy",
            "rewards": {"countdown": score},
        }
        lines = [row, row | {"part": "sampled"}]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (tmp_path / f"eval_{when}_completions.jsonl").write_text(text, encoding="utf-8")
    [[_, before, after]] = completions_rows(tmp_path, ["countdown"])
    assert before.startswith("before a\u2028b") and after.startswith("after a\u2028b")


def small_demo(folder: Path):
    folder.mkdir(exist_ok=True)
    names = {
        field: str(small_recipe(name, folder, SMALL[name]))
        for field, name in (
            ("recipe", "countdown/tiny.yaml"),
            ("sft_recipe", "countdown/tiny-sft.yaml"),
        )
    }
    return replace(DEMOS["countdown"], **names)


def run(folder: Path) -> None:
    run_demo(small_demo(folder), folder / "run")


def start(folder: Path) -> Forked:
    return Forked(run, folder, environment={"PYTHONPATH": str(REPO), "HF_HUB_OFFLINE": "1"})


def finish(process: Forked) -> str:
    assert process.wait() == 0, process.printed[-4000:]
    return process.printed


def test_a_demo_is_stopped_in_training_and_finished_later(tmp_path):
    run = tmp_path / "run"
    process = start(tmp_path)
    deadline = time.time() + LIMIT
    while not list(run.glob("grpo/checkpoint-*/trainer_state.json")):
        assert process.poll() is None and time.time() < deadline, process.printed[-4000:]
        time.sleep(0.1)
    process.kill()
    made = {
        name: (run / name).stat().st_mtime_ns
        for name in ("demonstrations.jsonl", "warm_start/model.safetensors", "eval_before.json")
    }

    output = finish(start(tmp_path))
    assert {name: (run / name).stat().st_mtime_ns for name in made} == made
    assert "Resuming from" in output
    for when in ("before", "after"):
        summary = json.loads((run / f"eval_{when}.json").read_text())
        assert summary["n"] == 12
        assert set(summary["greedy"]) >= {"countdown", "countdown_se", "format", "length"}
        assert summary["sampled"]["num_samples"] == 8
        assert 0 <= summary["sampled"]["pass@1"] <= summary["sampled"]["pass@8"] <= 1
    history = json.loads((run / "grpo" / "trainer_state.json").read_text())["log_history"]
    assert sorted(entry["step"] for entry in history if "loss" in entry) == [1, 2, 3, 4, 5, 6]
    assert [entry["step"] for entry in history if "eval_countdown" in entry] == [0, 3, 6]
    assert (run / "curves.png").read_bytes()[:4] == b"\x89PNG"

    weights = [path for path in run.rglob("*") if path.name.endswith((".safetensors", ".jsonl"))]
    made = {path: path.stat().st_mtime_ns for path in weights}
    assert "already done" in finish(start(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in weights} == made
