"""Rewards in worker processes run while completions are scored under the old policy and the
reference.
"""

from __future__ import annotations

import time

from datasets import Dataset
from transformers import AutoTokenizer

from grpo_ext import GRPOExtTrainer
from grpo_ext.common.modules import load_file
from tests.support.forked import LIMIT
from tests.support.logs import metric_values
from tests.support.registry_state import registry_as_before
from tests.support.tiny_run import tiny_arguments

ROWS = 16
PLUGIN = '''
from grpo_ext.rewards import register


@register("noted", needs_cpu=True)
def noted(completions, notes):
    """The length of the text, with a line in the file `notes` for each row scored."""
    for text, path in zip(completions, notes, strict=True):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{len(text)}\\n")
    return [float(len(text)) for text in completions]
'''


def test_all_rewards_are_there_before_the_reference_has_scored(tiny_folder, tmp_path):
    """The reference waits for the workers here: forever, if they began after it."""
    notes = tmp_path / "notes"
    args = tiny_arguments(
        tmp_path, max_steps=2, per_device_train_batch_size=ROWS, beta=0.1, reward_workers=1
    )
    rows = [{"prompt": f"Use {a} and 1.", "notes": str(notes)} for a in range(8)]
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")
    with registry_as_before():
        (tmp_path / "noted_plugin.py").write_text(PLUGIN)
        load_file(tmp_path / "noted_plugin.py")
        trainer = GRPOExtTrainer(
            str(tiny_folder), ["noted"], args, Dataset.from_list(rows), processing_class=tokenizer
        )
        scorer = trainer.parts.scorer
        seen = []
        score = scorer.score

        def waiting(model, *args, **kwargs):
            if model is trainer.ref_model:
                end = time.monotonic() + LIMIT
                while (count := len(notes.read_text().split()) if notes.exists() else 0) < ROWS * (
                    len(seen) + 1
                ):
                    assert time.monotonic() < end, f"{count} rewards"
                    time.sleep(0.02)
                seen.append(count)
            return score(model, *args, **kwargs)

        scorer.score = waiting
        trainer.train()
    assert seen == [ROWS, 2 * ROWS]
    assert len(notes.read_text().split()) == 2 * ROWS  # each row once
    logged = metric_values(trainer, "reward")
    lengths = list(map(int, notes.read_text().split()))
    assert [sum(lengths[:ROWS]) / ROWS, sum(lengths[ROWS:]) / ROWS] == logged
