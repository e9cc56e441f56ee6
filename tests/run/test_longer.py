"""The commands that a finished run prints.

One of them makes it longer, and it ends where one of that length ends.
"""

from __future__ import annotations

import shlex

import pytest
import yaml
from safetensors.torch import load_file

from grpo_ext.cli.main import main as command
from grpo_ext.train import main

VALUES = {
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "task": "countdown",
    "num_problems": 40,
    "max_numbers": 3,
    "max_number": 9,
    "reward_funcs": ["countdown", "format", "reward.py:length"],
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 8,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "save_steps": 1,
    "logging_steps": 1,
}


@pytest.mark.slow
def test_the_next_commands_work_and_a_longer_run_is_the_run_of_that_length(
    tiny_folder, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text(
        "def length(completions, **kwargs):\n    return [len(str(c)) / 9 for c in completions]\n"
    )
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump({**VALUES, "model_name_or_path": str(tiny_folder)})
    )

    def train(folder, steps):
        words = [
            "--config",
            "recipe.yaml",
            "--output_dir",
            str(tmp_path / folder),
            "--max_steps",
            str(steps),
        ]
        assert main(words) == 0
        return load_file(tmp_path / folder / "model.safetensors"), capfd.readouterr().out

    begun, out = train("a", 2)
    report, compare, go_on = (
        shlex.split(line) for line in out.partition("next:\n")[2].splitlines()[:3]
    )
    assert command(report[1:]) == 0 and (tmp_path / "a" / "report.html").is_file()
    assert command([*compare[1:], "--num_samples", "0", "--max_eval_samples", "4"]) == 0
    capfd.readouterr()
    assert go_on[:2] == ["grpo-ext", "train"] and main(go_on[2:]) == 0
    longer = load_file(tmp_path / "a" / "model.safetensors")
    out = capfd.readouterr().out
    assert "Resuming from" in out and "checkpoint-2" in out and "1 rank, the whole model" in out
    whole, _ = train("b", 4)
    assert any(not begun[key].equal(longer[key]) for key in begun)
    assert all(longer[key].equal(whole[key]) for key in whole)
