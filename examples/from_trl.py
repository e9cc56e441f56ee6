"""Run a script for plain TRL with two changed imports.

With `preset: trl`, a recipe trains bit for bit as TRL does.
"""

from __future__ import annotations

from datasets import Dataset
from tiny_model import tiny_model

from grpo_ext import GRPOExtConfig as GRPOConfig  # was: from trl import GRPOConfig
from grpo_ext import GRPOExtTrainer as GRPOTrainer  # was: from trl import GRPOTrainer


def distinct_characters(completions, **kwargs):
    """Return one number per completion; TRL passes each completion as a list of messages."""
    return [float(len(set(messages[0]["content"]))) for messages in completions]


dataset = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": "Use 3, 7, 12 to make 16."}]}] * 16
)
training_args = GRPOConfig(
    output_dir="runs/examples/from_trl",
    max_steps=2,
    num_generations=4,
    per_device_train_batch_size=8,
    max_completion_length=24,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to="none",
)
trainer = GRPOTrainer(
    model=tiny_model(), reward_funcs=distinct_characters, args=training_args, train_dataset=dataset
)
result = trainer.train()
print(f"{result.global_step} steps, training loss {result.training_loss:.4f}")
