"""Draw prompts that are likely to have signal, and replace groups that turn out to have none.

A group whose rewards are all equal has no gradient. `curriculum="adaptive"` draws prompts according
to their pass rates so far. `group_filter="refill"` fills each step with groups whose rewards
differ.
"""

from __future__ import annotations

from datasets import Dataset
from tiny_model import tiny_model

from grpo_ext import GRPOExtConfig, GRPOExtTrainer


def begins_with(completions: list[str], letters: list[str], **columns: list) -> list[float]:
    """1 if the completion begins with one of its row's letters; many letters make a row easy."""
    return [
        float(text[:1].lower() in allowed)
        for text, allowed in zip(completions, letters, strict=True)
    ]


letters = ["abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghijklm", "aeiou", "q"]
rows = Dataset.from_dict({"prompt": [f"Write {i}." for i in range(32)], "letters": letters * 8})
args = GRPOExtConfig(
    output_dir="runs/examples/curriculum",
    curriculum="adaptive",
    group_filter="refill",
    max_steps=4,
    num_generations=4,
    per_device_train_batch_size=16,
    max_completion_length=8,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to="none",
)
trainer = GRPOExtTrainer(tiny_model(), [begins_with], args, rows)
trainer.train()
for entry in trainer.state.log_history:
    shares = {name: value for name, value in entry.items() if name.startswith("groups/")}
    if shares:
        print(
            f"step {entry['step']}: "
            + ", ".join(f"{name} {value:.2f}" for name, value in shares.items())
        )
