"""`cast_lm_head_to_fp32` with tied embeddings, which TRL cannot cast in every model."""

from __future__ import annotations

import pytest
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig

from grpo_ext import GRPOExtTrainer, load_recipe
from grpo_ext.preflight.head_in_float32 import check_head
from grpo_ext.recipe.problems import Findings
from tests.support.tiny_run import tiny_arguments

SMALL = {"vocab_size": 512, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
CONFIGS = {
    "tied": LlamaConfig(**SMALL, **HEADS, tie_word_embeddings=True),
    "untied": LlamaConfig(**SMALL, **HEADS, tie_word_embeddings=False),
    "elsewhere": GPT2Config(vocab_size=512, n_embd=16, n_layer=1, n_head=2),
}


def zero(completions, **columns):
    return [0.0] * len(completions)


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_fails_in_trl_is_refused_from_the_recipe(tiny_folder, tmp_path, name, adapter):
    CONFIGS[name].save_pretrained(tmp_path)
    settings = {"model_name_or_path": str(tmp_path), "use_peft": adapter}
    findings = Findings()
    check_head(load_recipe(None, {**settings, "cast_lm_head_to_fp32": True}).flat, findings)
    check_head(load_recipe(None, settings).flat, findings)
    problems = [problem.message for problem in findings.problems]
    try:
        GRPOExtTrainer(
            AutoModelForCausalLM.from_config(CONFIGS[name]),
            [zero],
            tiny_arguments(tmp_path / "out", cast_lm_head_to_fp32=True),
            Dataset.from_list([{"prompt": "a"}] * 8),
            processing_class=AutoTokenizer.from_pretrained(tiny_folder, padding_side="left"),
            peft_config=LoraConfig(r=2, target_modules="all-linear") if adapter else None,
        )
    except AttributeError:
        [problem] = problems
        assert ("adapter" in problem) == adapter and "Set `cast_lm_head_to_fp32: false`" in problem
    else:
        assert problems == []
