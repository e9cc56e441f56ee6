"""Train on two tasks in one run from Python.

The dataset has a column `task`, and each reward returns None for the rows of the other task.
"""

from __future__ import annotations

from datasets import Dataset
from tiny_model import tiny_model

from grpo_ext import GRPOExtConfig, GRPOExtTrainer

rows = [{"task": "short", "prompt": f"Say {n} briefly.", "most": n} for n in range(4, 20)]
rows += [{"task": "vowels", "prompt": f"Sing {n}.", "most": None} for n in range(4, 20)]


def brief(completions: list[str], task: list[str], most: list[int | None], **columns):
    """Return 1 for a completion of at most `most` characters; score only the task `short`."""
    return [
        float(len(text) <= n) if name == "short" and n is not None else None
        for text, name, n in zip(completions, task, most, strict=True)
    ]


def vowels(completions: list[str], task: list[str], **columns):
    """Return the share of vowels; score only the task `vowels`."""
    return [
        sum(letter in "aeiou" for letter in text) / max(len(text), 1) if name == "vowels" else None
        for text, name in zip(completions, task, strict=True)
    ]


def show(logs: dict[str, float]) -> None:
    for task in ("short", "vowels"):
        figures = {name: logs.get(f"tasks/{task}/{name}") for name in ("reward", "groups/mixed")}
        print(task, ", ".join(f"{name} {value}" for name, value in figures.items()))


args = GRPOExtConfig(
    output_dir="runs/examples/several_tasks",
    num_generations=4,
    per_device_train_batch_size=32,
    max_completion_length=12,
    group_filter="refill",  # keeps the groups of both tasks that have signal
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    bf16=False,
)
trainer = GRPOExtTrainer(tiny_model(), [brief, vowels], args, Dataset.from_list(rows))
trainer.train()
show(next(logs for logs in reversed(trainer.state.log_history) if "reward" in logs))
