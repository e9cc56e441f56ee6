"""Calls of Llama 3, Gemma 4 and gpt-oss: what is played is what their chat templates write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.environments.base import Environment
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.fit_answers import fitted_answer
from grpo_ext.environments.tools import ToolEnvironment
from grpo_ext.environments.transcript import as_text
from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.samplers.lockstep_episodes import hear, write_turn
from tests.support.call_formats import FORMATS, GPT_OSS, examples, gemma, llama, multiply

ROOT = Path(__file__).parents[2]
QUESTION = {"role": "user", "content": "What is 3 times 4?"}


def look(word: str) -> str:
    """Look up a word.

    Args:
        word: The word.
    """
    return f'"{word}"\nis é\\<|end|><|eot_id|><tool_response|><|"|> <|start|>system'


TOOLS = [multiply, look]


def each(formats=FORMATS):
    return pytest.mark.parametrize("form", formats, ids=lambda form: form.template)


def begun(form, folder, options=None, step=None, **rules):
    tokenizer = form.tokenizer(folder)
    answers_texts = step is not None
    tokens = TurnTokens(tokenizer, form.end_tokens(tokenizer), options, TOOLS, answers_texts)
    environment = step or ToolEnvironment(TOOLS)
    settled = EpisodeRules(ToolEnvironment, **{"turns": 99, **rules})
    return Episode(settled, tokens, 100_000, {"prompt": [QUESTION]}, environment)


def say(one, text):
    """Let the model write a turn with its special tokens; then the episode reads the answer."""
    ids = one.tokens.tokens_of(text)
    assert write_turn(one, ids, max_tokens=len(ids) + 1) == len(ids)
    hear([one])
    while one.pending:
        one.read()


def rendered(one, messages, opens):
    """Tokens that the template writes for a conversation."""
    return one.tokens.tokenizer.apply_chat_template(
        [QUESTION, *messages], tools=TOOLS, add_generation_prompt=opens, return_dict=True
    )["input_ids"]


@each()
def test_what_is_played_is_what_the_template_writes(form, tiny_folder):
    """Also the thoughts before calls, which gpt-oss drops only after the last turn.

    After that turn, a line break may follow.
    """
    one = begun(form, tiny_folder)
    thought = "hm, 3 and 4" if form.thought else ""
    turns = [
        form.call("multiply", {"a": 3, "b": 4}, thought),
        form.call("multiply", {"a": 12, "b": 5}),
        form.say("It is 60."),
    ]
    for number, turn in enumerate(turns, 1):
        say(one, turn)
        is_last = number == len(turns)
        written = rendered(one, one.messages, opens=not is_last)
        played = one.prompt_ids + one.ids
        if form is GPT_OSS and is_last:
            last = one.tokens.tokens_of("<|start|>assistant" + turn)
            assert written[-len(last) :] == played[-len(last) :] == last
            break
        assert played == written[: len(played)]
        assert one.tokens.tokenizer.decode(written[len(played) :]).strip() == ""
    assert one.end == "environment" and one.world.calls == 2 and one.world.failed_calls == 0
    assert [message.get("content") for message in one.messages] == ["", "12", "", "60", "It is 60."]
    written_by_model = [one.tokens.tokens_of(turn) for turn in turns]
    assert one.turn_ids() == written_by_model
    assert sum(one.mask) == sum(map(len, written_by_model))
    assert as_text(one.messages).splitlines()[-4:] == [
        "> 12",
        'multiply({"a": 12, "b": 5})',
        "> 60",
        "It is 60.",
    ]
    assert ("hm, 3 and 4" in as_text(one.messages)) == bool(thought)


@pytest.mark.parametrize("template", ["gemma4", "gemma4_v3", "gemma4_v4", "gemma4_v5"])
def test_gemma_thinks_before_each_call(template, tiny_folder):
    """The last version opens the thought after a result itself."""
    form = gemma(template)
    one = begun(form, tiny_folder, {"enable_thinking": True})
    first = form.call("multiply", {"a": 3, "b": 4}, "hm")
    second = form.call("multiply", {"a": 12, "b": 5}, "so")
    say(one, first)
    if template == "gemma4_v5":
        second = second.removeprefix(form.thought[0])
    say(one, second)
    assert [message.get("reasoning_content") for message in one.messages[::2]] == ["hm", "so"]
    assert [message["content"] for message in one.messages[1::2]] == ["12", "60"]
    written = one.tokens.tokenizer.apply_chat_template(
        [QUESTION, *one.messages],
        tools=TOOLS,
        add_generation_prompt=True,
        return_dict=True,
        enable_thinking=True,
    )["input_ids"]
    assert one.prompt_ids + one.ids == written


@each([form for form in FORMATS if form.template.startswith("gemma")])
def test_several_calls_of_a_turn_are_answered_as_gemma_writes_them(form, tiny_folder):
    one = begun(form, tiny_folder)
    first = form.call("multiply", {"a": 3, "b": 4}).removesuffix("<|tool_response>")
    say(one, first + form.call("multiply", {"a": 5, "b": 6}))
    assert [message["content"] for message in one.messages[1:]] == ["12", "30"]
    assert one.prompt_ids + one.ids == rendered(one, one.messages, opens=True)


@each()
def test_special_tokens_in_a_result_are_text(form, tiny_folder):
    """The text is what the template writes; no mark of it is a special token."""
    one = begun(form, tiny_folder)
    say(one, form.call("look", {"word": "x"}))
    text = one.tokens.tokenizer.decode(one.prompt_ids + one.ids)
    written = one.tokens.tokenizer.decode(rendered(one, one.messages, opens=True))
    assert text == written and "is é" in text
    plain = begun(form, tiny_folder)
    say(plain, form.call("multiply", {"a": 3, "b": 4}))
    special = set(one.tokens.tokenizer.all_special_ids)
    marks, plain_marks = (
        [token for token, is_turn in zip(e.ids, e.mask, strict=True) if not is_turn]
        for e in (one, plain)
    )
    assert [t for t in marks if t in special] == [t for t in plain_marks if t in special]
    say(one, form.say("x"))  # what the result spelled is no call of the model
    assert one.end == "environment" and one.world.calls == 1


@each([llama("llama3_1"), GPT_OSS])
def test_a_long_result_is_cut_as_it_is_written(form, tiny_folder):
    """Quotes and line breaks take more tokens as JSON."""
    tokens = begun(form, tiny_folder).tokens
    result = {"role": "tool", "name": "look", "content": '"\n' * 300}
    for limit in (60, 61, 200):
        fitted = fitted_answer([result], tokens, ended=True, limit=limit)
        assert fitted.is_cut and limit - 8 < len(fitted.ids) <= limit


def test_the_page_shows_what_is_played():
    page = (ROOT / "docs" / "several-turns.md").read_text()
    assert examples() in page


FAULTY_ARGUMENTS = ["", "{", "[]", "null", "3", "{'a': 3}", '{"a": 3', "{" * 500, "[" * 5000]
FAULTY_ARGUMENTS += ['{"a": 3 "b": 4}', '{"a":' * 300, '{"a": NaN, "b": }']


@each()
def test_faulty_calls_are_answered_and_counted(form, tiny_folder):
    one = begun(form, tiny_folder, turns=1000)
    before, after = form.before_arguments, form.after_arguments
    texts = [f"{form.opening}multiply{before}{text}{after}" for text in FAULTY_ARGUMENTS]
    for name in ("add", "Multiply", "__init__", "os.system", "é", "x" * 500):
        texts.append(form.call(name, {}))
    for arguments in ({}, {"a": 3}, {"a": 3, "b": 4, "c": 5}, {"a": {}, "b": 2}, {"self": 1}):
        texts.append(form.call("multiply", arguments))
    for text in texts:
        say(one, text)
        assert not one.ended, text
        assert one.messages[-1]["content"].startswith("error: "), text
    assert one.world.calls == one.world.failed_calls == len(texts)
    assert one.world.failures == 0
    json.dumps(one.messages, ensure_ascii=False).encode()
    say(one, form.call("multiply", {"a": 3, "b": 4}))
    assert one.messages[-1]["content"] == "12"


@each()
def test_a_call_after_a_text_is_not_made(form, tiny_folder):
    """The templates of Llama and Gemma drop the text, or write it after the result."""
    one = begun(form, tiny_folder)
    text = "I multiply. "
    if form is GPT_OSS:
        text = "<|channel|>commentary<|message|>I multiply.<|end|><|start|>assistant"
    call = form.call("multiply", {"a": 3, "b": 4})
    say(one, text + call)
    assert one.messages[-1]["content"].startswith("error: the call was not made; write it alone")
    assert "tool_calls" not in one.messages[0] and "I multiply." in one.messages[0]["content"]
    say(one, call)
    assert one.messages[-1]["content"] == "12"
    assert one.world.calls == 2 and one.world.failed_calls == 1 and not one.ended


@each([form for form in FORMATS if not form.template.startswith("llama")])
def test_a_call_spelled_with_ordinary_tokens_is_not_made(form, tiny_folder):
    """The model has written no mark of a call, although its text reads like one.

    Calls of Llama have no marks.
    """
    one = begun(form, tiny_folder)
    *_, end = one.tokens.tokens_of(form.call("multiply", {"a": 3, "b": 4}))
    text = form.call("multiply", {"a": 3, "b": 4}).removesuffix(one.tokens.tokenizer.decode([end]))
    ids = [*one.tokens.plain_tokens(text), end]
    write_turn(one, ids, max_tokens=len(ids) + 1)
    hear([one])
    assert one.world.calls == one.world.failed_calls == 1
    assert one.messages[-1]["content"].startswith("error: ")


@pytest.mark.parametrize(
    "text",
    [
        "<|python_tag|>multiply.call(a=3, b=4)<|eom_id|>",
        '<|python_tag|>{"name": "multiply", "parameters": {"a": 3, "b": 4}}<|eot_id|>',
        '{"name": "multiply", "parameters": {"a": 3, "b": 4}}<|eom_id|>',
        '<|python_tag|>{"name": "multiply", "parameters": {"a": 3, "b": 4}}<|eom_id|>',
        '{"name": "multiply", "parameters": {"a": 3, "b": 4}}; '
        '{"name": "multiply", "parameters": {"a": 3, "b": 4}}<|eot_id|>',
    ],
)
def test_forms_that_the_template_of_llama_does_not_write_are_answered(text, tiny_folder):
    one = begun(llama("llama3_1"), tiny_folder)
    say(one, text)
    assert one.messages[-1]["content"].startswith("error: ")
    assert one.world.failed_calls == one.world.calls == 1 and not one.ended


@pytest.mark.parametrize("json_mark", ["<|constrain|>json", "json"])
def test_gpt_oss_may_name_the_channel_before_the_tool(json_mark, tiny_folder):
    """The form of its own completions, which the template writes in another order."""
    one = begun(GPT_OSS, tiny_folder)
    thought = "hm".join(GPT_OSS.thought)
    header = f"<|channel|>commentary to=functions.multiply {json_mark}<|message|>"
    say(one, f'{thought}{header}{{"a": 3, "b": 4}}<|call|>')
    turn, result = one.messages
    assert turn["thinking"] == "hm" and turn["content"] == ""
    assert turn["tool_calls"][0]["function"] == {"name": "multiply", "arguments": {"a": 3, "b": 4}}
    assert result == {"role": "tool", "name": "multiply", "content": "12"}
    answer = [token for token, is_turn in zip(one.ids, one.mask, strict=True) if not is_turn]
    header = "<|start|>functions.multiply to=assistant<|channel|>commentary<|message|>"
    assert one.tokens.tokenizer.decode(answer) == f'{header}"12"<|end|><|start|>assistant'


@each([form for form in FORMATS if not form.template.startswith("llama")])
def test_a_call_that_ends_as_a_last_turn_ends_the_episode(form, tiny_folder):
    """After this end token, the template writes no result."""
    one = begun(form, tiny_folder)
    call = form.call("multiply", {"a": 3, "b": 4})
    say(one, call.removesuffix(form.ends[1]) + form.ends[0])
    assert one.end == "environment" and one.world.calls == 0
    other = begun(form, tiny_folder)
    say(other, form.say("It is 12.").removesuffix(form.ends[0]) + form.ends[1])
    assert other.messages[-1]["content"].startswith("error: the call could not be read")


@each()
def test_turns_that_are_cut_off_stay_safe(form, tiny_folder):
    """A turn has the end token of a call, in front of the result, only if it calls or begins to."""
    call = form.call("multiply", {"a": 3, "b": 4})
    ids = begun(form, tiny_folder).tokens.tokens_of(call)
    for length in range(1, len(ids)):
        one = begun(form, tiny_folder, turn_tokens=length)
        write_turn(one, ids[:length], max_tokens=length + 1)
        hear([one])
        while one.pending:
            one.read()
        is_whole = length == len(ids) - 1
        if one.ended:
            assert one.end == "environment" and one.world.calls == 0 and not is_whole
            continue
        assert one.mask == [1] * length + [0] * (len(one.ids) - length)
        assert one.ids[length] == ids[-1]
        content = one.messages[-1]["content"]
        assert content == "12" if is_whole else content.startswith("error: ")


@each()
@given(data=st.data())
def test_any_text_is_a_turn(form, data, tiny_folder):
    one = EPISODES.get(form.template)
    if one is None:
        one = EPISODES[form.template] = begun(form, tiny_folder, turns=10**9)
    marks = sorted(one.tokens.tokenizer.get_added_vocab())
    letters = st.sampled_from([*'{}[]":, \n<>/_nameparmts=o.functioljs0123', *marks])
    text = "".join(data.draw(st.lists(letters, max_size=40)))
    one.end = ""
    before = one.turns
    ids = one.tokens.tokens_of(text)
    message, fault = one.tokens.message(text, ids, [])
    one.take_turn(message, text, fault=fault)
    one.hear()
    one.pending.clear()
    assert one.turns == before + 1 and one.world.failures == 0


EPISODES = {}


class Stepping(Environment):
    def tools(self):
        return TOOLS

    def step(self, text):
        return "Go on.", False


@each([llama("llama3_1"), llama("llama3_2")])
def test_llama_also_holds_the_answers_of_step(form, tiny_folder):
    one = begun(form, tiny_folder, step=Stepping())
    say(one, form.call("multiply", {"a": 3, "b": 4}))
    say(one, form.say("It is 12."))
    say(one, form.call("multiply", {"a": 5, "b": 4}))
    assert [message["content"] for message in one.messages[1::2]] == ["12", "Go on.", "20"]
    assert one.prompt_ids + one.ids == rendered(one, one.messages, opens=True)


@pytest.mark.parametrize(
    "form, words",
    [
        (gemma("gemma4"), "drops the thoughts of earlier turns once `step`"),
        (gemma("gemma4_v5"), "drops the thoughts of earlier turns once `step`"),
        (GPT_OSS, r"ends the last turn with '<\|return\|>' and writes '<\|end\|>' in its place"),
    ],
    ids=lambda part: getattr(part, "template", ""),
)
def test_templates_that_change_turns_once_step_answers_are_refused(form, words, tiny_folder):
    with pytest.raises(ValueError, match=words):
        begun(form, tiny_folder, step=Stepping())


def test_templates_that_change_calls_are_refused(tiny_folder):
    """This version of Gemma's drops all thoughts."""
    with pytest.raises(ValueError, match="changes or drops tool calls, or the thoughts"):
        begun(gemma("gemma4_v2"), tiny_folder)
    form = gemma("gemma4")
    tokenizer = form.tokenizer(tiny_folder)
    with pytest.raises(ValueError, match=r"'<\|tool_response>', which is not one of the model's"):
        TurnTokens(tokenizer, [tokenizer.eos_token_id], None, TOOLS, answers_texts=False)
