"""Train on rows of your own with a recipe that needs no code for data or rewards.

The command `grpo-ext train --config FILE` runs the same recipe.
"""

from __future__ import annotations

import json
from pathlib import Path

from tiny_model import tiny_model

from grpo_ext import load_recipe
from grpo_ext.train import make_trainer

folder = Path("runs/examples/own_rows")
folder.mkdir(parents=True, exist_ok=True)
rows = [
    {"question": f"What is {a} + {b}?", "solution": str(a + b)}
    for a in range(1, 9)
    for b in range(1, 5)
]
(folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

(folder / "recipe.yaml").write_text(
    f"""\
model_name_or_path: {tiny_model()}
output_dir: {folder}/run
task: prompts
user_prompt: "{{question}}"          # filled in from a column of the row
system_prompt: "Answer with the number alone, in \\\\boxed{{{{}}}}."
dataset_name: {folder}/rows.jsonl
reward_funcs: [accuracy, {{name: length, weight: 0.1, target: 24}}]
num_generations: 4
per_device_train_batch_size: 16
max_completion_length: 24
max_steps: 3
logging_steps: 1
save_strategy: "no"
report_to: none
"""
)

recipe = load_recipe(folder / "recipe.yaml")
trainer = make_trainer(recipe)
trainer.train()
print("first prompt:", trainer.train_dataset[0]["prompt"])
print("rewards:", ", ".join(trainer.reward_func_names))
