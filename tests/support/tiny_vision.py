"""Tiny untrained models that read images, and what goes with them."""

from __future__ import annotations

import torch
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoTokenizer,
    CLIPImageProcessor,
    LlavaProcessor,
)

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TEXT |= {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
}
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
EYES = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 4,
}
QWEN = {
    "qwen2_5_vl": (ROPE, {**EYES, "window_size": 16, "fullatt_block_indexes": [0]}),
    "qwen3_vl": (
        {**ROPE, "mrope_interleaved": True},
        {**EYES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    ),
}
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ "
    "part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}"
)


def seeded(config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForImageTextToText.from_config(config, dtype=torch.float32)


def qwen_vision(kind: str, vocab_size: int):
    """Qwen2.5-VL or Qwen3-VL, whose tokens have positions of three parts.

    Its eyes are not trained.
    """
    rope, eyes = QWEN[kind]
    text = {
        **TEXT,
        "vocab_size": vocab_size,
        "rope_parameters": rope,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    tokens = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = {name: vocab_size - 1 - i for i, name in enumerate(tokens)}
    model = seeded(AutoConfig.for_model(kind, text_config=text, vision_config=eyes, **ids))
    model.model.visual.requires_grad_(False)
    return model


def llava(folder, chat: str = CHAT, image_token: str = "<image>"):
    """A model that reads images of 8 by 8 as 4 tokens each, with the tokenizer of `folder`, and its
    processor.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.add_special_tokens({"additional_special_tokens": [image_token]})
    tokenizer.chat_template = chat
    size = {"height": 8, "width": 8}
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(size=size, crop_size=size),
        tokenizer=tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=image_token,
        chat_template=chat,
    )
    text = {**TEXT, "model_type": "llama", "vocab_size": len(tokenizer)}
    text |= {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    eyes = {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
    }
    eyes |= {"num_attention_heads": 2, "image_size": 8, "patch_size": 4, "projection_dim": 32}
    image = tokenizer.convert_tokens_to_ids(image_token)
    return seeded(
        AutoConfig.for_model("llava", text_config=text, vision_config=eyes, image_token_id=image)
    ), processor
