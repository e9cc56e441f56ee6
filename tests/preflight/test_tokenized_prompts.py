"""Prompts as the model will see them, and the traps in them."""

from __future__ import annotations

import time

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from grpo_ext.preflight.tokenized_prompts import check_tokenized_prompts
from grpo_ext.preflight.try_rewards import try_rewards
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards import build

CONTEXT = 2048  # of the tiny model
CHAT = [
    [{"role": "user", "content": text}] for text in ("Use 1 to make 1.", "Use 1, 2, 3 to make 6.")
]


@pytest.fixture
def tokenizer(tiny_folder):
    return AutoTokenizer.from_pretrained(tiny_folder)


def seen(tokenizer, prompts, folder, **settings):
    findings = Findings()
    flat = load_recipe(
        None, {"model_name_or_path": str(folder), "max_completion_length": 16, **settings}
    ).flat
    return check_tokenized_prompts(prompts, tokenizer, flat, findings), findings


def test_prompts_are_shown_and_counted(tokenizer, tiny_folder):
    found, findings = seen(tokenizer, CHAT, tiny_folder)
    lengths = [
        len(
            tokenizer.apply_chat_template(p, add_generation_prompt=True, return_dict=True)[
                "input_ids"
            ]
        )
        for p in CHAT
    ]
    assert found["tokens"] == {"min": min(lengths), "mean": sum(lengths) / 2, "max": max(lengths)}
    assert found["first"] == "<|im_start|>user\nUse 1 to make 1.<|im_end|>\n<|im_start|>assistant\n"
    assert found["room"] == CONTEXT - 16
    assert not findings.problems and not findings.notes


def test_a_share_over_the_limit_is_a_note_and_all_are_a_problem(tokenizer, tiny_folder):
    lengths = [
        len(tokenizer.apply_chat_template(p, add_generation_prompt=True)["input_ids"]) for p in CHAT
    ]
    some = seen(tokenizer, CHAT, tiny_folder, max_completion_length=CONTEXT - lengths[0])
    assert some[0]["over"] == 0.5 and "1 of the first 2 prompts" in some[1].notes[0].message
    every = seen(tokenizer, CHAT, tiny_folder, max_completion_length=CONTEXT - lengths[0] + 1)
    assert f"at most {CONTEXT - lengths[1]}" in every[1].problems[0].message
    alone = seen(tokenizer, ["x " * CONTEXT] * 2, tiny_folder)
    assert (
        "Drop long prompts" in alone[1].problems[0].message
        and "at most" not in alone[1].problems[0].message
    )


def test_a_second_bos_is_a_problem(tokenizer, tiny_folder):
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", tokenizer.bos_token_id)]
    )
    _, plain = seen(tokenizer, ["user\nHi"], tiny_folder)
    assert not plain.problems
    _, rendered = seen(tokenizer, ["<|im_start|>user\nHi"], tiny_folder)
    assert "twice" in rendered.problems[0].message


LLAMA = (
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
)


@pytest.mark.parametrize(
    ("beginning", "options", "remedy"),
    [
        (LLAMA + "{{ date_string }}", {}, "Set `chat_template_kwargs: {date_string: "),
        (LLAMA + "{{ date_string }}", {"date_string": "26 Jul 2024"}, None),
        ("{{ strftime_now('%Y-%m-%d') }}", {}, "Save the tokenizer with a template"),
    ],
)
def test_a_template_that_writes_todays_date_is_noted(
    tokenizer, tiny_folder, beginning, options, remedy
):
    tokenizer.chat_template = beginning + tokenizer.chat_template
    found, findings = seen(tokenizer, CHAT, tiny_folder, chat_template_kwargs=options)
    assert not findings.problems
    if remedy is None:
        assert "26 Jul 2024" in found["first"]
        assert not findings.notes
    else:
        [note] = findings.notes
        assert note.message.startswith("the model's chat template writes today's date")
        assert remedy in note.message


def test_a_template_that_opens_the_think_tag_is_seen(tokenizer, tiny_folder):
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "assistant\n{% endif", "assistant\n<think>\n{% endif"
    )
    found, _ = seen(tokenizer, CHAT, tiny_folder)
    assert found["prefilled"] and found["first"].endswith("<think>\n")
    findings = Findings()
    try_rewards([build("format", mode="strict")], {"prompt": CHAT[0]}, True, findings)
    assert 'prefix: "<think>"' in findings.problems[0].message
    fine = Findings()
    try_rewards(
        [build("format", mode="strict", prefix="<think>\n")], {"prompt": CHAT[0]}, True, fine
    )
    assert not fine.problems


def test_arguments_that_the_template_does_not_read_are_noted(tokenizer, tiny_folder):
    arguments = {"chat_template_kwargs": {"enable_thinking": False}}
    _, findings = seen(tokenizer, CHAT, tiny_folder, **arguments)
    assert list(map(str, findings.notes)) == [
        (
            "`chat_template_kwargs: enable_thinking` does nothing, because the model's chat "
            "template does not use enable_thinking. Remove this argument, or correct its name."
        )
    ]
    _, of_texts = seen(tokenizer, ["Hi"], tiny_folder, **arguments)
    assert list(map(str, of_texts.notes)) == [
        "chat_template_kwargs does nothing, because the prompts are strings, not chat messages. "
        "Remove it."
    ]
    tokenizer.chat_template = "{% if enable_thinking %}{% endif %}" + tokenizer.chat_template
    assert not seen(tokenizer, CHAT, tiny_folder, **arguments)[1].notes
    parsed = {"chat_template_kwargs": {"continue_final_message": False}}
    assert not seen(tokenizer, CHAT, tiny_folder, **parsed)[1].notes


def test_no_chat_template_is_a_problem(tokenizer, tiny_folder):
    tokenizer.chat_template = None
    found, findings = seen(tokenizer, CHAT, tiny_folder)
    assert found is None and "no chat template" in findings.problems[0].message


def test_a_reward_that_fails_on_some_is_a_note():
    def partial(completions, **kwargs):
        return [1.0 / len(c[0]["content"]) for c in completions]

    findings = Findings()
    figures = try_rewards([partial], {"prompt": CHAT[0]}, False, findings, max_failure_rate=0.25)
    scores = figures["scores"]["partial"]
    assert scores[0] is None and scores[1] > 0
    assert not findings.problems
    [note] = findings.notes
    assert note.message.startswith(
        "reward 'partial' fails on 1 of 3 made-up completions, which get no score (- in the "
        "table). Training saves a checkpoint and ends if the reward fails on more than 25% of "
        "completions (`reward_max_failure_rate`). The last failure: ZeroDivisionError"
    )


def test_a_reward_that_cannot_tell_completions_apart_is_a_note():
    def constant(completions, **kwargs):
        return [0.5] * len(completions)

    findings = Findings()
    try_rewards(
        [constant, build("format"), build("language_consistency")],
        {"prompt": CHAT[0]},
        False,
        findings,
    )
    [note] = findings.notes
    assert "'constant' gave 0.5 to each of 3 made-up completions" in note.message and findings.sound


def test_a_reward_that_hangs_is_a_note_and_does_not_hold_up(monkeypatch):
    def hangs(completions, **kwargs):
        while True:
            time.sleep(0.01)

    monkeypatch.setattr("grpo_ext.preflight.try_rewards.PATIENCE", 0.2)
    monkeypatch.setattr("grpo_ext.preflight.try_rewards.BUDGET", 0.3)
    findings = Findings()
    found = try_rewards([hangs, build("format")], {"prompt": CHAT[0]}, False, findings)
    assert findings.sound
    assert "ran out of time before reward 'hangs' had scored" in findings.notes[0].message
    assert found["scores"]["hangs"] == [None, None, None]
