"""Sample with a temperature, top-k and top-p.

Completions are scored under the same truncation, so the gradient is that of the sampling policy.
`sampling/logp_difference/max` is the largest difference between the trainer's and the sampler's
log-probs. Here, it comes only from rounding.
"""

from __future__ import annotations

from datasets import Dataset
from tiny_model import tiny_model

from grpo_ext import GRPOExtConfig, GRPOExtTrainer, build

rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "Say hello."}]}] * 16)
args = GRPOExtConfig(
    output_dir="runs/examples/truncated",
    temperature=0.7,
    top_k=20,
    top_p=0.9,
    max_steps=3,
    num_generations=4,
    per_device_train_batch_size=16,
    max_completion_length=24,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to="none",
)
trainer = GRPOExtTrainer(tiny_model(), [build("length", target=12)], args, rows)
trainer.train()
for entry in trainer.state.log_history:
    if "sampling/logp_difference/max" in entry:
        print(
            f"step {entry['step']}: largest difference {entry['sampling/logp_difference/max']:.1e}"
        )
