"""Decoding does what it says and leaves no trace."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.evaluation.completions import Decoding, generate_completions

PROMPTS = [
    [{"role": "user", "content": text}]
    for text in ("Use 1, 2, 3 to make 6.", "Use 7, 8 to make 15.", "Hello")
]
ROWS = [{"prompt": prompt} for prompt in PROMPTS]


@pytest.fixture(scope="module")
def policy(tiny_folder):
    return AutoModelForCausalLM.from_pretrained(tiny_folder), AutoTokenizer.from_pretrained(
        tiny_folder, padding_side="left"
    )


@torch.no_grad()
def greedy_by_hand(model, tokenizer, prompt, steps):
    """One token at a time, without padding and without a cache."""
    ids = encode_prompts([prompt], tokenizer)[0]
    out = []
    for _ in range(steps):
        token = int(model(input_ids=torch.tensor([ids + out])).logits[0, -1].argmax())
        out.append(token)
        if token == tokenizer.eos_token_id:
            break
    return out


def test_greedy_is_the_most_likely_token_each_time(policy):
    model, tokenizer = policy
    for batch_size in (1, 3):
        found = generate_completions(model, tokenizer, ROWS, Decoding(10), batch_size=batch_size)
        assert [c.ids for (c,) in found] == [
            greedy_by_hand(model.eval(), tokenizer, prompt, 10) for prompt in PROMPTS
        ]


def test_a_models_own_generation_config_does_not_leak_in(policy):
    model, tokenizer = policy
    plain = generate_completions(
        model, tokenizer, ROWS, Decoding(8, temperature=1.0, num_samples=4)
    )
    model.generation_config.update(temperature=0.01, top_k=1, repetition_penalty=3.0)
    try:
        same = generate_completions(
            model, tokenizer, ROWS, Decoding(8, temperature=1.0, num_samples=4)
        )
        assert model.generation_config.top_k == 1
    finally:
        model.generation_config.update(temperature=None, top_k=None, repetition_penalty=None)
    assert plain == same
    assert len({tuple(c.ids) for c in plain[0]}) > 1


@pytest.mark.parametrize("task_type", [None, "CAUSAL_LM"])
def test_an_adapter_is_decoded_as_asked(policy, tiny_folder, task_type):
    tokenizer = policy[1]
    base = AutoModelForCausalLM.from_pretrained(tiny_folder)
    model = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear", task_type=task_type))
    usual = base.generation_config
    found = generate_completions(
        model, tokenizer, ROWS, Decoding(5, temperature=1.0, num_samples=8), batch_size=24
    )
    assert all(len(c.ids) <= 5 for row in found for c in row)
    assert all(len({tuple(c.ids) for c in row}) > 1 for row in found)
    assert base.generation_config is usual and model.generation_config is usual


def test_random_state_and_training_mode_are_left_alone(policy):
    model, tokenizer = policy
    model.train()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    generate_completions(model, tokenizer, ROWS, Decoding(4, temperature=1.0))
    assert torch.equal(torch.rand(3), expected)
    assert model.training


def test_samples_follow_the_model_s_distribution(policy):
    """First tokens of 4,000 samples against the softmax at temperature 0.7, by a chi-squared
    statistic.
    """
    model, tokenizer = policy
    found = generate_completions(
        model, tokenizer, ROWS[:1], Decoding(1, temperature=0.7, num_samples=4000), batch_size=4000
    )
    ids = encode_prompts(PROMPTS[:1], tokenizer)
    with torch.no_grad():
        probs = torch.softmax(
            model.eval()(input_ids=torch.tensor(ids)).logits[0, -1].double() / 0.7, dim=0
        )
    counts = torch.bincount(
        torch.tensor([c.ids[0] for c in found[0]]), minlength=len(probs)
    ).double()
    common = probs * 4000 >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    expected = torch.cat([probs[common], probs[~common].sum()[None]]) * 4000
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    assert freedom >= 5
    assert (
        abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5
    )  # a chi-squared has mean k and variance 2k
