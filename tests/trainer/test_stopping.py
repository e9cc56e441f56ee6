"""Signals sent to real processes.

The run stops with a checkpoint and code 75, and the same command resumes it.
"""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from grpo_ext.cli.main import main
from grpo_ext.run.ranks import EXIT_INTERRUPTED
from grpo_ext.train import main as train
from grpo_ext.trainer.manifest import checkpoints, what_is_wrong
from grpo_ext.trainer.stopping import Interrupted
from tests.support import resumed_run
from tests.support.clocks import timeless
from tests.support.forked import LIMIT, Forked, on_ranks
from tests.support.places import REPO
from tests.support.short_countdown import plugin_settings, words_of

pytestmark = pytest.mark.slow
STEPS = 12
HELD = """
import time
from pathlib import Path
from grpo_ext import register

FOLDER = Path(__file__).parent
LOG = FOLDER / "run" / "metrics.jsonl"

@register("held")
def held(completions):
    '''1 where the sum of the characters is even; waits at the step that the file `hold` names.'''
    while must_hold():
        (FOLDER / "held").touch()
        time.sleep(0.02)
    return [float(sum(map(ord, text)) % 2 == 0) for text in completions]

def must_hold():
    try:
        steps = int((FOLDER / "hold").read_text())
    except (FileNotFoundError, ValueError):
        return False
    return LOG.exists() and LOG.read_text().count("\\n") >= steps
"""
ENVIRONMENT = {"PYTHONPATH": str(REPO)}


def words_for(tiny_folder, out, **more):
    """Of `grpo-ext train`."""
    settings = plugin_settings(
        tiny_folder,
        out,
        HELD,
        "held",
        max_steps=STEPS,
        save_total_limit=9,
        learning_rate=1e-2,
        warmup_steps=0,
    )
    return words_of({**settings, **more})


def command(words):
    """`grpo-ext train WORDS`: accelerate's launcher and a rank, which signals must reach."""
    return Forked(main, ["train", *words], environment=ENVIRONMENT)


def rank(words):
    """What the command launches, where no signal is sent."""
    return Forked(train, words, environment=ENVIRONMENT)


def begun_and_held(words, folder, steps):
    """A run by `words` that does not go on after so many steps, until `let_go`."""
    (folder / "hold").write_text(str(steps))
    process = command(words)
    limit = time.monotonic() + LIMIT
    while not (folder / "held").exists():
        assert process.poll() is None and time.monotonic() < limit, process.printed[-3000:]
        time.sleep(0.1)
    return process


def let_go(folder):
    for name in ("hold", "held"):
        (folder / name).unlink()


def test_pre_emption_ctrl_c_and_the_same_command_again(tiny_folder, tmp_path):
    whole = rank(words_for(tiny_folder, tmp_path / "whole"))
    assert whole.wait() == 0, whole.printed[-3000:]
    out = tmp_path / "run"
    for number, steps_first in ((signal.SIGTERM, 2), (signal.SIGINT, 6)):
        process = begun_and_held(words_for(tiny_folder, out), tmp_path, steps_first)
        process.send_signal(number)
        process.wait_for(f"{number.name}: the run will save a checkpoint and stop")
        let_go(tmp_path)
        assert process.wait() == EXIT_INTERRUPTED, process.printed[-3000:]
        assert (
            f"The cause is {number.name}." in process.printed and "Traceback" not in process.printed
        )
    steps = [int(folder.name.rpartition("-")[2]) for folder in checkpoints(out)]
    assert len(steps) == 2 and 2 <= steps[0] < steps[1] < STEPS
    assert all(what_is_wrong(folder) is None for folder in checkpoints(out))
    again = rank(words_for(tiny_folder, out))
    assert again.wait() == 0 and f"Resuming from {out}/checkpoint-{steps[1]}" in again.printed, (
        again.printed[-3000:]
    )
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, tmp_path / "whole"))
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())
    for log in ("samples.jsonl", "metrics.jsonl"):
        ours, theirs = (list(map(read, (f / log).open())) for f in (out, tmp_path / "whole"))
        assert ours == theirs


def read(line):
    return timeless(json.loads(line))


def test_a_second_ctrl_c_leaves_at_once_and_another_run_or_recipe_is_refused(tiny_folder, tmp_path):
    out = tmp_path / "run"
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 500}
    words = words_for(tiny_folder, out, **saving)
    process = begun_and_held(words, tmp_path, 2)
    second = command(words)
    assert second.wait() == 2 and f"another run is writing to {out}" in second.printed, (
        second.printed[-2000:]
    )
    process.send_signal(signal.SIGINT)
    process.wait_for("SIGINT: the run will save a checkpoint")  # two at once would arrive as one
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130, process.printed[-3000:]
    let_go(tmp_path)
    assert not (out / "trainer_state.json").exists()
    other = rank(words_for(tiny_folder, out, **saving, learning_rate=2e-2))
    assert other.wait() == 2 and "learning_rate: 0.01  ->  0.02" in other.printed, other.printed[
        -2000:
    ]


class Sends(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 4 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGUSR1)


def spoilt_and_stopped(folder, out):
    trainer = resumed_run.make(folder, out, save_strategy="no")
    if os.environ["RANK"] == "1":
        resumed_run.spoil(trainer, {2, 3}, float("nan"))
    trainer.add_callback(Sends())
    with pytest.raises(Interrupted) as stopped:
        trainer.train()
    assert trainer.parts.finite.skipped == 2 and all(
        p.isfinite().all() for p in trainer.model.parameters()
    )
    return stopped.value.code


def test_two_ranks_skip_and_leave_together(tiny_folder, tmp_path):
    """The gradient is spoilt on one rank, and the signal comes to one rank."""
    on_ranks(2, spoilt_and_stopped, tiny_folder, tmp_path, code=EXIT_INTERRUPTED)
    assert [folder.name for folder in checkpoints(tmp_path)] == ["checkpoint-5"]
    assert what_is_wrong(tmp_path / "checkpoint-5") is None
