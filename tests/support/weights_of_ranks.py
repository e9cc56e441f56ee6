"""`grpo_ext.train` that leaves each rank's trained weights in `output_dir`.

Run by `test_engine_ranks`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from grpo_ext.run.training import run_training
from grpo_ext.train import make_trainer


class KeepWeights(TrainerCallback):
    def on_train_end(self, args, state, control, model=None, **kwargs):
        weights = {
            name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad
        }
        torch.save(weights, Path(args.output_dir) / f"weights-{args.process_index}.pt")


def make(recipe):
    trainer = make_trainer(recipe)
    trainer.add_callback(KeepWeights())
    return trainer


if __name__ == "__main__":
    sys.exit(run_training(None, make))
