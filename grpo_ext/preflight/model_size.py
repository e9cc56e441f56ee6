"""How big a recipe's model is, from its config alone: the modules are made without weights."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from trl import ModelConfig, get_peft_config

from grpo_ext.recipe.memory import ModelSize
from grpo_ext.recipe.rules import Values
from grpo_ext.vllm.settings import TextModel


def model_size(v: Values, model: ModelConfig) -> ModelSize | None:
    """The sizes of the recipe's model, with the adapter of TRL's `model` arguments; `None` where its config is not here."""
    name, revision, trust = v["model_name_or_path"], v["model_revision"], bool(v["trust_remote_code"])
    try:
        config = AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust)
        with torch.device("meta"):
            made = AutoModelForCausalLM.from_config(config, trust_remote_code=trust)
        made.tie_weights()
    except Exception:  # offline, no such model, not a language model: the figures are left out
        return None
    parameters = made.num_parameters()
    if (adapter := get_peft_config(model)) is not None:
        from peft import get_peft_model

        with torch.device("meta"):
            made = get_peft_model(made, adapter)
    trainable = sum(p.numel() for p in made.parameters() if p.requires_grad)
    text, hidden = TextModel.of(config), config.get_text_config().hidden_size
    width = text.kv_heads * text.head_size
    return ModelSize(parameters, trainable, text.dtype, hidden, text.num_hidden_layers, width)
