"""Evaluation through vLLM: the greedy completions are those of transformers, the sampled ones of the same distribution."""

from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.evaluation.engine import EngineCompletions
from grpo_ext.evaluation.generate import Decoding, generate_completions
from grpo_ext.tasks.countdown import Countdown

pytestmark = pytest.mark.vllm


def test_completions_of_both_engines(engine_folder):
    tokenizer = AutoTokenizer.from_pretrained(engine_folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(engine_folder)
    task = Countdown(num_problems=16, max_numbers=3, max_number=9, operators="+-", max_target=30)
    prompts = [row["prompt"] for row in task.dataset("train")]
    engine = EngineCompletions(str(engine_folder), tokenizer, None, 256)
    greedy = Decoding(12)
    sampled = Decoding(4, temperature=0.7, num_samples=64, top_k=3)
    try:
        assert engine(prompts, greedy) == generate_completions(model, tokenizer, prompts, greedy)
        ours = engine(prompts, sampled)
    finally:
        engine.close()
    theirs = generate_completions(model, tokenizer, prompts, sampled, batch_size=1024)
    for mine, other in zip(ours, theirs, strict=True):
        assert len(mine) == len(other) == 64
        counts = [
            [[c.ids[0] for c in some].count(token) for some in (mine, other)] for token in {c.ids[0] for c in other}
        ]
        assert len(counts) <= 3  # top_k
        for a, b in counts:  # two binomials of 64: five standard deviations at most
            assert abs(a - b) <= 5 * (2 * 64 * 0.25) ** 0.5
    pooled = [[c.ids[0] for some in part for c in some] for part in (ours, theirs)]
    assert set(pooled[0]) == set(pooled[1])
