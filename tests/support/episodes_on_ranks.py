"""A run on several ranks whose environment answers in the background, with other numbers of rounds
on each rank.
"""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset
from transformers import AutoTokenizer

from grpo_ext import GRPOExtTrainer
from grpo_ext.run.ranks import leave_ranks
from tests.support.logs import entries_with
from tests.support.sharded_run import shard_on_a_cpu
from tests.support.tiny_run import tiny_arguments

TURNS = (1, 1, 5, 5)  # of the episodes of each prompt; the last two prompts are the second rank's


def main(how: str, out: str, folder: str) -> int:
    shard_on_a_cpu(how, Path(out))
    rows = [
        {"prompt": [{"role": "user", "content": f"Use {number}."}], "turns": turns}
        for number, turns in enumerate(TURNS)
    ]
    args = tiny_arguments(
        out,
        environment={"name": "tests.support.slow_worlds:Uneven", "turn_tokens": 4},
        max_completion_length=200,
        max_steps=2,
        shuffle_dataset=False,
        eval_temperature=0.0,
        per_device_eval_batch_size=2,
    )
    trainer = GRPOExtTrainer(
        folder,
        ["environment"],
        args,
        Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
    )
    assert trainer.is_fsdp_enabled == (how == "fsdp2")
    trainer.train()
    for entry in entries_with(trainer, "loss"):
        assert entry["episodes/turns"] == sum(TURNS) / len(TURNS)
        assert entry["episodes/failures"] == 0
        assert 1 - 1e-4 < entry["sampling/ratio/min"] <= entry["sampling/ratio/max"] < 1 + 1e-4
    figures = trainer.evaluate(Dataset.from_list(rows))
    assert figures["eval_length"] > 0
    leave_ranks()
    return 0
