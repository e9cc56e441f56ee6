"""The trainer generates with the fast loop.

The same training, the sampler still watched, and said once.
"""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext import GRPOExtTrainer
from grpo_ext.trainer.run_output import describe
from tests.support.logs import entries_with
from tests.support.tiny_models import batch_sizes
from tests.support.tiny_run import tiny_arguments


def by_place(completions, **kwargs):
    """Rewards that differ within a group, whatever was written."""
    return [float(i % 3) for i in range(len(completions))]


def make_trainer(folder, out, model=None, ends=1, **settings):
    settings = {
        "max_completion_length": 24,
        "learning_rate": 1e-3,
        "fast_generate": True,
        **settings,
    }
    args = tiny_arguments(
        out,
        sampler_check_share=1.0,
        max_steps=2,
        per_device_train_batch_size=16,
        **settings,
    )
    model = model or AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = [f"Use {a}, {a + 1}, 3 to make {'1' * a}." for a in range(1, 9)]
    trainer = GRPOExtTrainer(
        model=model,
        reward_funcs=[by_place],
        args=args,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": text}]} for text in prompts]
        ),
        eval_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": text}]} for text in prompts[:3]]
        ),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
    )
    if ends > 1:  # an untrained model hardly ever ends by itself
        ids = sorted({*trainer.eos_token_ids, *range(5, 5 + ends)})
        trainer.eos_token_ids = trainer.generation_config.eos_token_id = ids
    return trainer


def trained(trainer):
    with batch_sizes(trainer.model) as passes:
        trainer.train()
    decoding = [rows for rows, width in passes if width == 1]
    history = entries_with(trainer, "loss")
    return (
        history,
        {name: p.detach() for name, p in trainer.model.named_parameters()},
        passes[0],
        decoding,
    )


def test_the_same_training_where_sampling_leaves_no_choice(tiny_folder, tmp_path):
    """top_k: 1 draws the most likely token.

    Scored without truncation, there is a gradient all the same.
    """
    settings = {
        "ends": 60,
        "top_k": 1,
        "logprob_policy": "model",
        "optim": "sgd",
        "learning_rate": 0.1,
    }
    runs = [
        trained(make_trainer(tiny_folder, tmp_path / str(fast), fast_generate=fast, **settings))
        for fast in (True, False)
    ]
    (
        (ours, our_weights, our_prefill, our_rows),
        (theirs, their_weights, their_prefill, their_rows),
    ) = runs
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("loss", "grad_norm", "completions/mean_length", "completions/clipped_ratio"):
            assert mine[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6)
    assert any(row["grad_norm"] > 0 for row in ours)
    assert all(
        torch.allclose(our_weights[name], their_weights[name], atol=1e-6) for name in our_weights
    )
    assert our_prefill[0] == 4 and their_prefill[0] == 16
    assert sum(our_rows) < sum(their_rows)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.7},
        {"top_k": 7, "top_p": 0.9},
        {"min_p": 0.05, "generation_kwargs": {"min_new_tokens": 3}},
    ],
)
def test_what_was_sampled_is_scored_exactly(tiny_folder, tmp_path, sampling):
    history, _, _, rows = trained(
        make_trainer(tiny_folder, tmp_path, ends=60, beta=0.1, **sampling)
    )
    assert len(history) == 2 and min(rows) < 16
    for step in history:
        assert step["sampling/logp_difference/max"] < 1e-4
        assert step["sampling/ratio/mean"] == pytest.approx(1, abs=1e-5)


def test_a_row_s_log_probs_are_its_own(tiny_folder, tmp_path):
    """The recorder's figures, row by row, against one forward pass over each row alone."""
    trainer = make_trainer(tiny_folder, tmp_path, ends=60, top_k=9, temperature=0.8)
    trainer.model.train()
    batch = trainer._generate_and_score_completions(
        [dict(trainer.train_dataset[i // 4]) for i in range(16)]
    )
    lengths = batch.completion_mask.sum(-1).tolist()
    assert len(set(lengths)) > 3
    for i, n in enumerate(lengths):
        prompt = batch.prompt_ids[i][batch.prompt_mask[i].bool()]
        completion = batch.completion_ids[i][:n]
        with torch.no_grad():
            logits = trainer.model(input_ids=torch.cat([prompt, completion]).unsqueeze(0)).logits[0]
        scores = logits[len(prompt) - 1 : -1] / 0.8  # (n, V)
        kept = scores >= scores.topk(9).values[:, -1:]
        expected = (
            scores.masked_fill(~kept, -torch.inf)
            .log_softmax(-1)
            .gather(1, completion.unsqueeze(1))
            .squeeze(1)
        )
        assert torch.allclose(batch.sampling_per_token_logps[i][:n], expected, atol=1e-4)
        assert torch.equal(batch.kept[i].mask(), kept)


def test_adapters_with_dropout_train(tiny_folder, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj"]))
    trainer = make_trainer(tiny_folder, tmp_path, model=model, ends=60, disable_dropout=False)
    with batch_sizes(model.get_base_model()) as passes:
        trainer.train()
    assert passes[0][0] == 16  # each row of a group has dropout of its own
    assert min(rows for rows, width in passes if width == 1) < 16


def test_evaluation_reads_each_prompt_once_and_decodes_the_same(tiny_folder, tmp_path):
    found = []
    for fast in (True, False):
        trainer = make_trainer(
            tiny_folder, tmp_path / str(fast), eval_temperature=0.0, fast_generate=fast
        )
        metrics = trainer.evaluate()
        found.append({key: value for key, value in metrics.items() if "runtime" not in key})
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "settings, words",
    [
        ({}, "each prompt processed once, finished rows removed from the batch (fast_generate)"),
        ({"fast_generate": False}, "transformers' generate (fast_generate: false)"),
        (
            {"cache_implementation": "static"},
            "transformers' generate, since cache_implementation is set; remove it from the recipe, "
            "from generation_kwargs, or from the model's generation_config.json",
        ),
    ],
)
def test_a_run_says_how_it_generates(tiny_folder, tmp_path, settings, words):
    assert describe(make_trainer(tiny_folder, tmp_path, **settings))[0] == words
