"""Chat templates in episodes: what they write, and why some are refused."""

from __future__ import annotations

import pytest

from grpo_ext.environments.bare_calls import QUESTION
from tests.environments.templates_page import FAMILIES, PAGE, page, turn_tokens

THOUGHT = "it grows by 3"
OPTIONS = {
    "nemotron_3_nano": {"truncate_history_thinking": False},
    "nemotron_3_ultra": {"truncate_history_thinking": False},
    "lfm2_2_5": {"preserve_thinking": True},
}
REFUSED = {"deepseekv3", "gptoss", "glm4moe", "mistral_v2", "llama2", "cohere2"}


def test_the_page_is_what_the_templates_do():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make templates`"


def written(tokens, messages):
    tokenizer = tokens.tokenizer
    encoded = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True, **tokens._options
    )
    return encoded["input_ids"]


@pytest.mark.parametrize("template", [name for name in FAMILIES if name not in REFUSED])
def test_an_episode_has_the_tokens_that_the_template_writes(template):
    """Three turns with thoughts, which templates read from the text or from their own field."""
    tokens = turn_tokens(template, **OPTIONS.get(template, {}))
    ids = tokens.prompt([QUESTION])
    opened = tokens.tokenizer.decode(ids).rstrip()
    by_field = [QUESTION]
    by_text = [QUESTION]
    for text, answer in (("24", "low"), ("27, then", "no"), ("30", "yes")):
        thought = f"<think>\n{THOUGHT}\n</think>\n\n"
        if opened.endswith("</think>"):
            thought = ""
        sampled = thought.removeprefix("<think>\n") if opened.endswith("<think>") else thought
        by_text += [{"role": "assistant", "content": thought + text}]
        by_field += [{"role": "assistant", "content": text, "reasoning_content": THOUGHT}]
        ids += [*tokens.tokens_of(sampled + text), tokens.end]
        reply = {"role": "user", "content": answer}
        by_text.append(reply)
        by_field.append(reply)
        ids += tokens.answer([reply], ended=True)
    assert tokens.tokenizer.decode(ids).count(THOUGHT) == 3 * bool(thought)
    assert ids in (written(tokens, by_text), written(tokens, by_field))


@pytest.mark.parametrize("template", sorted(REFUSED))
def test_a_refusal_shows_what_the_template_writes(template):
    with pytest.raises(ValueError, match="the tokens that it sampled"):
        turn_tokens(template)


def test_the_option_that_a_refusal_names_is_enough():
    with pytest.raises(ValueError, match=r"truncate_history_thinking: false}`, with which"):
        turn_tokens("nemotron_3_nano")
    turn_tokens("nemotron_3_nano", truncate_history_thinking=False)


def test_text_before_an_end_token_is_the_reason_that_is_given():
    with pytest.raises(ValueError, match="writes ' ' between a turn and its end token '</s>'"):
        turn_tokens("llama2")


def test_text_before_a_turn_is_shown():
    with pytest.raises(ValueError, match=r"writes ' <think>.* in place of '<think>"):
        turn_tokens("mistral_v2")


def test_a_template_that_trl_cannot_parse_is_told_what_to_do_instead():
    with pytest.raises(ValueError, match="describe the tools in the prompt and parse the calls"):
        turn_tokens("lfm2", [print_word])


@pytest.mark.parametrize("template", ["phi3", "zephyr"])
def test_a_template_that_drops_results_of_tools_is_told_what_to_do_instead(template):
    with pytest.raises(ValueError, match=r"drops tool results.*describe the tools in the prompt"):
        turn_tokens(template, [print_word])


def print_word(word: str) -> str:
    """Print a word.

    Args:
        word: The word.
    """
    return word
