"""Two processes on a CPU.

Both ways of starting them start two, and two ranks learn what one does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from grpo_ext.train import main as train
from tests.support.forked import LIMIT, on_ranks
from tests.support.places import REPO
from tests.support.short_countdown import SIGNAL, short_settings, words_of

pytestmark = pytest.mark.slow
SMALL = {"max_steps": 5, "max_completion_length": 16}


def run(command, **environment):
    out = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=REPO,
        timeout=LIMIT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert out.returncode == 0, out.stdout[-3000:] + out.stderr[-3000:]
    return out.stdout


def test_grpo_ext_train_starts_two_ranks(tiny_folder, tmp_path):
    words = words_of(short_settings(tiny_folder, tmp_path, **SMALL, **SIGNAL))
    out = run([sys.executable, "-m", "grpo_ext", "train", "--num_processes", "2", *words])
    assert "2 ranks (MULTI_CPU, gloo), the whole model on each" in out
    assert "each generation: 4 prompts x 4 completions" in out
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    assert sum("loss" in entry for entry in history) == 5


def test_accelerate_launch_with_the_two_process_config_starts_two_ranks(tiny_folder, tmp_path):
    words = words_of(short_settings(tiny_folder, tmp_path, **SMALL, **SIGNAL))
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        "recipes/accelerate/cpu_2.yaml",
    ]
    out = run([*launch, "--main_process_port", "0", "-m", "grpo_ext.train", *words])
    assert "2 ranks (MULTI_CPU, gloo)" in out


def test_evaluation_on_two_ranks_equals_one(tiny_folder, tmp_path):
    """Held-out figures do not depend on how the rows are shared out; 9 rows do not divide by 2."""
    figures = []
    for ranks in (1, 2):
        settings = short_settings(
            tiny_folder,
            tmp_path / str(ranks),
            max_steps=1,
            max_completion_length=16,
            learning_rate=0.0,
            eval_strategy="steps",
            eval_steps=1,
            max_eval_samples=9,
        )
        # a learning rate of 0 learns nothing, as the exit code says
        on_ranks(ranks, train, words_of(settings), code=1)
        history = json.loads((tmp_path / str(ranks) / "trainer_state.json").read_text())[
            "log_history"
        ]
        found = [entry for entry in history if "eval_length" in entry]
        assert len(found) == 2  # at the start and after the step
        figures.append(
            [
                {
                    key: entry[key]
                    for key in (
                        "eval_countdown",
                        "eval_format",
                        "eval_length",
                        "eval_format_constant",
                        "eval_format_constant_se",
                    )
                }
                for entry in found
            ]
        )
    assert figures[0] == figures[1]


def test_a_run_that_would_not_be_sharded_is_refused(tiny_folder, tmp_path):
    """accelerate sets FSDP aside on a CPU; the run says so instead of training unsharded."""
    words = words_of(short_settings(tiny_folder, tmp_path, **SMALL))
    with pytest.raises(
        AssertionError,
        match="The accelerate config asks for FSDP, which accelerate has not set up",
    ):
        on_ranks(2, train, words, environment={"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"})
    assert not (tmp_path / "trainer_state.json").exists()
