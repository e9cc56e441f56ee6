"""How big a recipe's model is, from its config alone: the modules are made without weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from trl import ModelConfig, get_peft_config

from grpo_ext.recipe.memory import ModelSize
from grpo_ext.recipe.rules import Values


def model_size(v: Values, model: ModelConfig) -> ModelSize | None:
    """The sizes of the recipe's model, with its adapter where it has one; `None` where its config is not to be had.

    Args:
        v: the recipe's values.
        model: TRL's model arguments, for the adapter.
    """
    trust = bool(v["trust_remote_code"])
    try:
        config = AutoConfig.from_pretrained(
            v["model_name_or_path"], revision=v["model_revision"], trust_remote_code=trust
        )
        with torch.device("meta"):
            made = AutoModelForCausalLM.from_config(config, trust_remote_code=trust)
        made.tie_weights()
    except Exception:  # offline, no such model, not a language model: the figures are left out
        return None
    parameters = count(made.parameters())
    if (adapter := get_peft_config(model)) is not None:
        from peft import get_peft_model

        with torch.device("meta"):
            made = get_peft_model(made, adapter)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelSize(
        parameters=parameters,
        trainable=count(p for p in made.parameters() if p.requires_grad),
        dtype=str(config.dtype or "float32").removeprefix("torch."),
        hidden_size=text.hidden_size,
        num_hidden_layers=text.num_hidden_layers,
        kv_width=heads * head,
    )


def count(parameters: Any) -> int:
    """Weights in all, shared ones once."""
    return sum(p.numel() for p in {id(p): p for p in parameters}.values())
