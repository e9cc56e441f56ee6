"""Train with a reward of your own: a function whose parameters name columns of the dataset.

A registered reward receives plain texts. Parameters without a default receive columns of the
dataset. Keyword-only parameters with a default are options, which `build` or a recipe sets.
"""

from __future__ import annotations

from datasets import Dataset
from tiny_model import tiny_model

from grpo_ext import GRPOExtConfig, GRPOExtTrainer, build, register


@register("few_words")
def few_words(completions: list[str], limit: list[int], *, penalty: float = 0.1) -> list[float]:
    """Return 1 if the completion is within its row's limit, less for each further character."""
    return [
        1.0 - penalty * max(0, len(text) - most)
        for text, most in zip(completions, limit, strict=True)
    ]


prompts = [
    [{"role": "user", "content": f"Say hello, {name}."}]
    for name in ("Ada", "Alan", "Grace", "Kurt")
]
rows = Dataset.from_dict({"prompt": prompts * 8, "limit": [10, 20, 30, 40] * 8})

args = GRPOExtConfig(
    output_dir="runs/examples/own_reward",
    max_steps=5,
    num_generations=4,
    per_device_train_batch_size=16,
    max_completion_length=24,
    learning_rate=1e-3,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to="none",
)
trainer = GRPOExtTrainer(tiny_model(), [build("few_words", penalty=0.05)], args, rows)
trainer.train()
for entry in trainer.state.log_history:
    if "rewards/few_words/mean" in entry:
        print(f"step {entry['step']}: mean reward {entry['rewards/few_words/mean']:.2f}")
