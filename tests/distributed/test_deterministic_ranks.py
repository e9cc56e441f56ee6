"""`deterministic: true` on two ranks, which deal their completions to one another."""

from __future__ import annotations

import json

import pytest

from tests.support.deterministic_run import make
from tests.support.forked import on_ranks
from tests.support.logs import entries_with


def train(folder, out):
    trainer = make(folder, out, per_device_train_batch_size=4, top_k=20, beta=0.1)
    trainer.train()
    if trainer.is_world_process_zero():
        steps = entries_with(trainer, "loss")
        found = [step["sampling/logp_difference/max"] for step in steps]
        (out / "differences.json").write_text(json.dumps(found))


@pytest.mark.slow
def test_two_ranks(tiny_folder, tmp_path):
    on_ranks(2, train, tiny_folder, tmp_path)
    assert json.loads((tmp_path / "differences.json").read_text()) == [0.0, 0.0]
