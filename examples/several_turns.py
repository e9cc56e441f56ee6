"""Train with an environment of your own, which asks for three sums and judges each answer."""

from __future__ import annotations

from datasets import Dataset
from tiny_model import tiny_model

from grpo_ext import Environment, GRPOExtConfig, GRPOExtTrainer


class Sums(Environment):
    """Asks for three sums, one after another; the numbers depend on the row."""

    def __init__(self, largest: int = 9):
        self.largest, self.asked, self.wanted, self.score = largest, 0, 0, 0.0

    def reset(self, row):
        self.wanted = row["seed"] % self.largest
        return self.question()

    def question(self) -> str:
        first = (self.wanted * 7 + self.asked) % self.largest
        self.wanted = first + 2
        return f"{first} + 2 = ?"

    def step(self, text):
        self.asked += 1
        right = text.strip() == str(self.wanted)
        self.score += right / 3
        return f"{'right' if right else 'wrong'}. {self.question()}", self.asked == 3


rows = Dataset.from_list(
    [
        {"prompt": [{"role": "user", "content": "Answer with a number."}], "seed": n}
        for n in range(16)
    ]
)
args = GRPOExtConfig(
    output_dir="runs/examples/several-turns",
    environment={"name": "__main__:Sums", "turn_tokens": 6},
    max_steps=3,
    num_generations=4,
    per_device_train_batch_size=16,
    max_completion_length=120,
    logging_steps=1,
    log_samples=1.0,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to="none",
)
trainer = GRPOExtTrainer(tiny_model(), ["environment"], args, rows)
trainer.train()
for entry in trainer.state.log_history:
    if "episodes/turns" in entry:
        score = entry["rewards/environment/mean"]
        print(
            f"step {entry['step']}: episodes/turns {entry['episodes/turns']:.2f}, score {score:.3f}"
        )
