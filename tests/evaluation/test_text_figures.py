"""Figures of completions as texts, against naive ones."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.evaluation.score import Sample
from grpo_ext.evaluation.text_figures import text_figures
from grpo_ext.scoring.frozen_model import FrozenModel


def test_the_figures_of_three_texts(tiny_folder):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    rows = [{"prompt": "Use 3, 7 to make 10."}, {"prompt": "Use 2, 9 to make 11."}]
    texts = ["Three + seven, three.", "", "Seven"]
    samples = [
        Sample(0, texts[0], {}, 5, "stop"),
        Sample(0, texts[1], {}, 0, "stop"),
        Sample(1, texts[2], {}, 2, "length"),
    ]
    figures = text_figures(rows, samples, FrozenModel(model, tokenizer))
    assert figures["ended"] == pytest.approx(2 / 3)
    assert figures["words"] == pytest.approx((3 + 0 + 1) / 3)
    assert figures["distinct_words"] == 2
    means = []
    for row, text in ((0, texts[0]), (1, texts[2])):  # an empty text has no log-prob
        prompt = tokenizer(rows[row]["prompt"]).input_ids
        ids = tokenizer(text, add_special_tokens=False).input_ids
        with torch.no_grad():
            logps = model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
        of_text = [logps[len(prompt) + i - 1, token].item() for i, token in enumerate(ids)]
        means.append(sum(of_text) / len(ids))
    assert figures["first_model_logp"] == pytest.approx(sum(means) / 2, abs=1e-5)
