"""Evaluation through vLLM: the greedy completions are those of transformers, the sampled ones of
the same distribution.

vLLM has a merged model, and transformers the base and the adapter that it was merged from.
"""

from __future__ import annotations

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.evaluation.completions import Decoding, generate_completions
from grpo_ext.evaluation.vllm_completions import VllmCompletions
from grpo_ext.run.merge_adapter import merge_adapter
from grpo_ext.tasks.countdown import Countdown

pytestmark = pytest.mark.vllm


def test_completions_of_both_engines(engine_folder, tmp_path):
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(engine_folder)
    config = LoraConfig(
        r=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
    )
    get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    assert merge_adapter(tmp_path / "adapter", tmp_path / "merged") <= 1e-5
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged", padding_side="left")
    tokenizer.chat_template = "{{ start }}" + tokenizer.chat_template
    start = {"start": "3 4 5"}
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    task = Countdown(num_problems=16, max_numbers=3, max_number=9, operators="+-", max_target=30)
    rows = list(task.dataset("train"))
    greedy = Decoding(12)
    stopped = Decoding(12, stop_strings=("!!", "mm", "on"))
    sampled = Decoding(4, temperature=0.7, num_samples=64, top_k=3)
    expected = generate_completions(model, tokenizer, rows, greedy, chat_template_kwargs=start)
    assert generate_completions(model, tokenizer, rows, greedy) != expected
    base = AutoModelForCausalLM.from_pretrained(engine_folder)
    assert (
        generate_completions(base, tokenizer, rows, greedy, chat_template_kwargs=start) != expected
    )
    engine = VllmCompletions(str(tmp_path / "merged"), tokenizer, None, 256, start)
    try:
        assert engine(rows, greedy) == expected
        stopped_by_engine = engine(rows, stopped)
        ours = engine(rows, sampled)
    finally:
        engine.close()
    assert stopped_by_engine != expected
    assert stopped_by_engine == generate_completions(
        model, tokenizer, rows, stopped, chat_template_kwargs=start
    )
    theirs = generate_completions(
        model, tokenizer, rows, sampled, batch_size=1024, chat_template_kwargs=start
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert len(mine) == len(other) == 64
        counts = [
            [[c.ids[0] for c in some].count(token) for some in (mine, other)]
            for token in {c.ids[0] for c in other}
        ]
        assert len(counts) <= 3  # top_k
        for a, b in counts:  # two binomials of 64: five standard deviations at most
            assert abs(a - b) <= 5 * (2 * 64 * 0.25) ** 0.5
    pooled = [[c.ids[0] for some in part for c in some] for part in (ours, theirs)]
    assert set(pooled[0]) == set(pooled[1])
