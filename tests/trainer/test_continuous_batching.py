"""transformers' continuous batching: it samples as it is scored, and evaluation goes through it."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext import GRPOExtTrainer
from grpo_ext.seams.trl import complete
from tests.support.tiny_run import tiny_arguments


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in text) / (1 + len(text)) for text in completions]


@pytest.fixture
def make(tiny_folder, tmp_path):
    def trainer():
        model = AutoModelForCausalLM.from_pretrained(tiny_folder)
        model.generation_config.min_p = (
            0.9  # of the model's own: transformers' `generate` takes it, this sampler does not
        )
        args = tiny_arguments(
            tmp_path,
            logging_steps=10,
            use_transformers_continuous_batching=True,
            max_steps=2,
            per_device_train_batch_size=4,
            transformers_continuous_batching_config={"num_blocks": 16, "max_batch_tokens": 64},
            per_device_eval_batch_size=4,
        )
        rows = Dataset.from_dict({"prompt": ["3 4 5 make 12"]})
        return GRPOExtTrainer(
            model,
            [digits],
            args,
            rows,
            rows,
            processing_class=AutoTokenizer.from_pretrained(tiny_folder),
        )

    return trainer


def test_the_models_own_min_p_is_neither_sampled_with_nor_scored(make):
    trainer = make()
    assert trainer.parts.scorer.params.min_p == 0.0
    with torch.no_grad():
        shares = trainer.model(torch.tensor([[5, 6, 7]])).logits[0, -1].softmax(-1)
    drawn = complete(trainer, [[5, 6, 7]] * 32, 4)
    assert min(float(shares[row[0]]) for row in drawn) < 0.9 * float(shares.max())


def test_evaluation_has_its_figures(make):
    """The sampler turns the model to training, where figures would go into those of training."""
    trainer = make()
    figures = trainer.evaluate()
    assert 0 <= figures["eval_reward"] <= 1 and not trainer.model.training
