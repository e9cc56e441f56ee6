"""Tiny untrained models of the families of the recipes' models, with the families' own chat
templates, and what the makers say of sampling.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
import trl
import yaml
from transformers import (
    AutoConfig,
    CLIPImageProcessor,
    LlavaProcessor,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from grpo_ext.common.files import data_lines
from grpo_ext.tiny.tokenizer import build_tokenizer
from tests.support import tiny_vision
from tests.support.places import REPO

MAKERS: dict[str, dict[str, Any]] = yaml.safe_load(
    (REPO / "tests" / "recipe" / "makers.yaml").read_text(encoding="utf-8")
)
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "initializer_range": 0.4,  # tokens differ in probability, and depend on those before them
}
# what a family needs beside `TEXT`, so that all its kinds of layers are there
MORE: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        "num_hidden_layers": 4,  # the last one attends, the others are recurrent
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "gemma3_text": {
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
EYES = {**tiny_vision.EYES, "num_position_embeddings": 16}
IMAGE_TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
# the class that TRL loads by the `architectures` of the models' config.json
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "gemma3_text": "Gemma3ForCausalLM",
}


def family_of(model: str) -> str:
    """Return the family of a model by its name on the hub."""
    [family] = [name for name, maker in MAKERS.items() if model in maker["models"]]
    return family


def tokenizer_of(family: str) -> PreTrainedTokenizerBase:
    """Return a small tokenizer with the family's chat template."""
    tokenizer = build_tokenizer(data_lines("grpo_ext.tasks", "prompts.yaml") * 10, 600)
    template = TEMPLATES / f"{MAKERS[family]['template']}.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer


def config_of(family: str, tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """Return the config of a tiny model; one that reads images has tokens for them beyond the
    tokenizer's.
    """
    text = {
        **TEXT,
        **MORE.get(family, {}),
        "vocab_size": len(tokenizer) + len(IMAGE_TOKENS),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if family != "qwen3_5":
        return AutoConfig.for_model(family, **text)
    ids = {name: len(tokenizer) + i for i, name in enumerate(IMAGE_TOKENS)}
    return AutoConfig.for_model(
        family, text_config=text, vision_config=EYES, tie_word_embeddings=True, **ids
    )


def save_tiny(family: str, folder: Path) -> None:
    """Save a tiny model of a family with its tokenizer."""
    tokenizer = tokenizer_of(family)
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model_class = getattr(transformers, CLASSES[family])
        model = model_class(config_of(family, tokenizer))
    model.save_pretrained(folder)


def processor_of(family: str) -> ProcessorMixin | None:
    """Return a processor where the family's models come with one for images; else `None`.

    It is Llava's, because that of Qwen3.5 needs torchvision. Without images both only apply the
    chat template.
    """
    if family != "qwen3_5":
        return None
    tokenizer = tokenizer_of(family)
    tokenizer.padding_side = "left"
    return LlavaProcessor(
        image_processor=CLIPImageProcessor(),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )
