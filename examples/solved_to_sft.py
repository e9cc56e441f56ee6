"""Train on the solved completions of a GRPO run, as `grpo-ext sft` does.

`samples.jsonl` in the folder of the run contains every completion with its rewards. Equal
completions of a prompt are used once, and each prompt has at most four completions.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from datasets import Dataset
from tiny_model import tiny_model

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.observe.jsonl import read
from grpo_ext.recipe.load import load_sft_recipe
from grpo_ext.sft import make_trainer

run, solved = Path("runs/examples/solved_to_sft"), Path("runs/examples/solved.jsonl")
small = {"max_steps": 3, "save_strategy": "no", "use_cpu": True, "bf16": False, "report_to": "none"}


def even(completions: list[str], **columns: list) -> list[float]:
    """Return 1 if the number of characters is even, else 0."""
    return [float(len(text) % 2 == 0) for text in completions]


args = GRPOExtConfig(
    str(run), num_generations=4, per_device_train_batch_size=16, max_completion_length=12, **small
)
trainer = GRPOExtTrainer(
    tiny_model(), [even], args, Dataset.from_dict({"prompt": [f"Write {i}." for i in range(16)]})
)
trainer.train()
trainer.save_model()

rows, kept = {}, Counter()
for sample in read(run / "samples.jsonl"):
    key = sample["prompt_id"], sample["text"]
    if (
        sample["mode"] == "train"
        and (sample["rewards"]["even"] or 0) >= 1
        and key not in rows
        and kept[key[0]] < 4
    ):
        kept[key[0]] += 1
        chat = not isinstance(sample["prompt"], str)
        completion = [{"role": "assistant", "content": sample["text"]}] if chat else sample["text"]
        rows[key] = {"prompt": sample["prompt"], "completion": completion}
solved.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")
print(f"{len(rows)} completions of {len(kept)} prompts in {solved}")

# Train as `grpo-ext sft` does.
recipe = {
    "model_name_or_path": str(run),
    "dataset_name": str(solved),
    "output_dir": f"{run}-sft",
    "learning_rate": 4e-4,
}
make_trainer(
    load_sft_recipe(None, {**recipe, "completion_only_loss": True, "logging_steps": 1, **small})
).train()
