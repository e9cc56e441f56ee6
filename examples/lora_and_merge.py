"""Train a LoRA adapter, then merge it with its base model, so that loading needs no peft."""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset
from peft import LoraConfig
from tiny_model import tiny_model
from transformers import AutoModelForCausalLM

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.run.merge_adapter import merge_adapter

rows = Dataset.from_dict({"prompt": ["Say hello."] * 16})
args = GRPOExtConfig(
    output_dir="runs/examples/lora",
    max_steps=3,
    num_generations=4,
    per_device_train_batch_size=16,
    max_completion_length=16,
    learning_rate=1e-2,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to="none",
)


def many_vowels(completions: list[str], **columns: list) -> list[float]:
    """Return the share of vowels. Any reward function for TRL works here."""
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in completions]


adapter = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
trainer = GRPOExtTrainer(tiny_model(), [many_vowels], args, rows, peft_config=adapter)
trainer.train()
trainer.save_model()

merged = Path("runs/examples/lora-merged")
merge_adapter(Path("runs/examples/lora"), merged)
model = AutoModelForCausalLM.from_pretrained(merged)
print(f"{type(model).__name__} with {model.num_parameters():,} parameters in {merged}")
