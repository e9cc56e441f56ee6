"""Tokenizers: nothing is lost, tags survive decoding, pieces are as short as promised, TRL finds
the completion.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.rewards.answers import TAGS
from grpo_ext.tiny.tokenizer import CHARACTERS, NUMBERS, TERSE, WORDS, build_tokenizer

CORPUS = [
    "Make 13 from 1, 5, 7.",
    "<think>\n7 + 1 → 8 + 5 → 13 yes; 5 - 1 → 4\n</think>\n<answer>\n7 + 1 + 5\n</answer>",
] * 50
PATTERNS = {"words": WORDS, "numbers": NUMBERS, "characters": CHARACTERS}
TOKENIZERS = {name: build_tokenizer(CORPUS, pattern=pattern) for name, pattern in PATTERNS.items()}


@pytest.mark.parametrize("name", PATTERNS)
@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    assert all(i < len(tokenizer) for i in ids)


@pytest.mark.parametrize("name", PATTERNS)
def test_tags_are_one_token_each_and_survive_skipping_special_tokens(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = [i for tag in TAGS for i in tokenizer(tag).input_ids]
    assert len(ids) == len(TAGS)
    assert tokenizer.decode(
        [*ids, tokenizer.eos_token_id, tokenizer.pad_token_id], skip_special_tokens=True
    ) == "".join(TAGS)


def test_numbers_are_one_token_and_the_same_wherever_they_stand() -> None:
    tokenizer = build_tokenizer([f"{n} + {n}" for n in range(100)] * 3, pattern=NUMBERS)
    for n in range(100):
        (alone,) = tokenizer(str(n)).input_ids
        assert tokenizer(f"Make {n} from {n}.").input_ids.count(alone) == 2
        assert tokenizer(f"\n{n} + {n}\n").input_ids.count(alone) == 2
    assert len(tokenizer("1 + 22 + 3").input_ids) == 5


def test_digits_are_one_token_each_in_words() -> None:
    assert len(TOKENIZERS["words"]("1234").input_ids) == 4


def test_chinese_characters_become_one_token() -> None:
    text = "人闲桂花落夜静春山空月出惊山鸟时鸣春涧中"
    tokenizer = build_tokenizer([text] * 3, vocab_size=1024, pattern=CHARACTERS)
    assert len(tokenizer(text).input_ids) == len(text)
    assert tokenizer.decode(tokenizer("落花").input_ids) == "落花"


def test_prompt_is_a_prefix_of_the_whole_chat_and_pads_left() -> None:
    tokenizer = TOKENIZERS["numbers"]
    prompt = [{"role": "user", "content": "Make 13 from 1, 5, 7."}]
    whole = [*prompt, {"role": "assistant", "content": "<answer>\n7 + 1 + 5\n</answer>"}]
    start = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    ids = tokenizer.apply_chat_template(whole, return_dict=True)["input_ids"]
    assert ids[: len(start)] == start
    assert tokenizer.eos_token_id in ids[len(start) :]
    assert len(start) < 25
    batch = tokenizer(["1", "1, 5, 7"], padding=True).input_ids
    assert batch[0][0] == tokenizer.pad_token_id and batch[0][-1] != tokenizer.pad_token_id


def test_a_terse_conversation_costs_a_token_a_message() -> None:
    tokenizer = build_tokenizer(CORPUS, pattern=NUMBERS, template=TERSE)
    messages = [
        {"role": role, "content": text}
        for role, text in (("user", "1"), ("assistant", "5"), ("user", "7"))
    ]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert [tokenizer.decode(i) for i in ids] == [
        "1",
        "<|im_end|>",
        "5",
        "<|im_end|>",
        "7",
        "<|im_end|>",
    ]


def test_it_can_be_saved_and_loaded(tmp_path) -> None:
    from transformers import AutoTokenizer

    tokenizer = TOKENIZERS["numbers"]
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = CORPUS[1]
    assert loaded(text).input_ids == tokenizer(text).input_ids
    assert loaded.decode(loaded(text).input_ids, skip_special_tokens=True) == text
    assert (loaded.eos_token, loaded.pad_token, loaded.padding_side) == (
        "<|im_end|>",
        "<|pad|>",
        "left",
    )
    assert loaded.chat_template == tokenizer.chat_template


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size must be at least 259, but is 100"):
        build_tokenizer(CORPUS, vocab_size=100)
