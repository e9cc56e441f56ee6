"""Figures and masks that have one meaning however a step is cut, a completion was cut off, or a
model is built.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_ext.trainer.run_output import describe
from tests.support.logs import json_rows
from tests.support.step_bench import Bench
from tests.support.step_work import Case
from tests.support.tiny_run import tiny_arguments, tiny_trainer

SMALL = Case(32, 16, 4, (10, 40), (25, 0.9, 60), 0.25, 300, hidden=32)


@pytest.mark.parametrize("more", [{}, {"max_tokens_per_micro_batch": 200}], ids=str)
def test_the_controller_of_the_entropy_moves_once_a_step(more):
    settings = {
        "use_adaptive_entropy": True,
        "entropy_coef": 0.1,
        "entropy_target": 50.0,
        "entropy_coef_delta": 0.005,
    }
    settings |= {"entropy_coef_max": 1.0, **more}
    bench = Bench(replace(SMALL, settings=tuple(settings.items())), ("ours",))
    trainer = bench.trainers["ours"]
    seen = []
    score = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (seen.append(inputs), score(model, inputs))[1]
    for step in (1, 2):
        bench.step("ours")
        assert trainer.entropy_coef == pytest.approx(0.1 + 0.005 * step)
    assert len(seen) > 8 if more else len(seen) == 4


@pytest.mark.parametrize("more", [{}, {"max_tokens_per_micro_batch": 60}], ids=str)
def test_the_time_of_a_step_covers_all_its_micro_batches(tiny_folder, tmp_path, more):
    trainer = make(tiny_folder, tmp_path, num_generations=4, **more)
    trainer.train()
    [row] = [row for row in json_rows(tmp_path / "metrics.jsonl") if "step_time" in row]
    phases = sum(row[f"time/{phase}"] for phase in ("generation", "rewards", "train"))
    assert row["step_time"] >= 0.99 * phases  # which it contains


def make(folder, out, **settings):
    rows = [{"prompt": f"Use {a}, {a + 1}, 3 to make {a + 4}."} for a in range(1, 9)]
    given = {
        "rollout_func": settings.pop("rollout_func", None),
        "eval_dataset": Dataset.from_list(rows[:4]),
    }
    args = tiny_arguments(
        out,
        max_completion_length=12,
        max_steps=1,
        **{"mask_truncated_completions": True, "skip_dead_rows": False, **settings},
    )
    return tiny_trainer(folder, [digits], args, Dataset.from_list(rows), **given)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in text) / (1 + len(text)) for text in completions]


def with_its_own_budget(prompts, trainer):
    """Five tokens a completion, of which the last is the end token in every fourth."""
    tokenizer = trainer.processing_class
    ids = [
        [*range(20, 24), tokenizer.eos_token_id if i % 4 == 0 else 24] for i in range(len(prompts))
    ]
    return {
        "prompt_ids": [tokenizer(p)["input_ids"] for p in prompts],
        "completion_ids": ids,
        "logprobs": None,
    }


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_a_rollout_func_may_read_any_option_of_generation(tiny_folder, tmp_path):
    options = {"stop": ["x"], "seed": 1, "num_return_sequences": 2}
    trainer = make(
        tiny_folder, tmp_path, rollout_func=with_its_own_budget, generation_kwargs=options
    )
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        (None, "returned an object of type NoneType"),
        ({"prompt_ids": []}, "lacks completion_ids, logprobs"),
    ],
)
def test_a_rollout_func_that_returns_something_else_is_told(
    tiny_folder, tmp_path, rollout, message
):
    trainer = make(tiny_folder, tmp_path, rollout_func=lambda prompts, trainer: rollout)
    with pytest.raises(ValueError, match=message):
        trainer.train()


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
@pytest.mark.parametrize(
    "settings",
    [{"rollout_func": with_its_own_budget}, {"generation_kwargs": {"max_new_tokens": 5}}],
    ids=["func", "kwargs"],
)
def test_what_a_shorter_budget_cuts_off_is_cut_off_for_mask_figures_and_samples(
    tiny_folder, tmp_path, settings
):
    trainer = make(tiny_folder, tmp_path, **settings)
    tables = []
    feed = trainer.parts.feed
    cut, feed.cut = feed.cut, lambda slices: (tables.extend(slices), cut(slices))[1]
    trainer.train()
    (table,), eos = tables, trainer.processing_class.eos_token_id
    assert table.width == 5
    ended = (table.completion_ids == eos).any(1)
    assert torch.equal(table.completion_mask.any(1), ended) and torch.equal(
        table.counted.bool(), ended
    )
    assert trainer.state.log_history[0]["completions/clipped_ratio"] == pytest.approx(
        1 - ended.float().mean().item()
    )
    rows = json_rows(tmp_path / "samples.jsonl")
    assert [row["finish_reason"] for row in rows].count("stop") == int(ended.sum())


def test_a_mixture_of_experts_runs_rectangles_and_says_so():
    shape = {
        "vocab_size": SMALL.vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
    }
    shape |= {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_local_experts": 4,
    }
    shape |= {
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
        "output_router_logits": True,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model("mixtral", **shape, router_aux_loss_coef=0.05)
    bench = Bench(SMALL, model=AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    found = {}
    for side in ("TRL", "ours"):
        torch.manual_seed(
            0
        )  # for the same rows in each micro-batch, over which the balance is taken
        found[side] = bench.step(side)
    ours = bench.trainers["ours"]
    assert ours.aux_loss_enabled and describe(ours)[1].startswith(
        "one padded batch per micro-batch (the MoE load-balancing loss"
    )
    assert (
        found["ours"][1] > 0.8 * found["TRL"][1]
    )  # cut to the longest of a micro-batch, and no more
    assert (found["ours"][2] - found["TRL"][2]).abs().max() < 1e-5 * found["TRL"][2].abs().max()


def test_the_loss_of_an_evaluation_has_the_estimator_and_the_constant_of_training(
    tiny_folder, tmp_path
):
    settings = {
        "beta": 0.5,
        "loss_type": "dr_grpo",
        "num_generations_eval": 4,
        "per_device_eval_batch_size": 16,
    }
    settings |= {"mask_truncated_completions": False}
    trainer = make(
        tiny_folder, tmp_path, kl_estimator="k2", use_bias_correction_kl=False, **settings
    )
    g = torch.Generator().manual_seed(0)
    for p in trainer.ref_model.parameters():
        p.data.add_(0.05 * torch.randn(p.shape, generator=g))
    tables = []
    score = trainer.parts.update.whole_batch
    trainer.parts.update.whole_batch = lambda table: (tables.append(table), score(table))[1]
    found = trainer.evaluate()["eval_loss"]
    (table,) = tables
    logps = trainer.parts.scorer.score(trainer.model, table).logps
    per_token = (
        0.5 * (table.ref_per_token_logps - logps) ** 2 / 2 - table.row_advantages
    )  # ratios are 1
    assert found == pytest.approx((per_token * table.loss_mask).sum().item() / (16 * 12), rel=1e-4)
