"""Calls are read once, answered in the template's words, and never end an episode or a run."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import trl
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from grpo_ext.environments.base import Environment
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.start_episodes import beginning, beginning_with_tools
from grpo_ext.environments.tools import ToolEnvironment
from grpo_ext.environments.transcript import as_text
from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.samplers.lockstep_episodes import hear, write_turn
from tests.support.forked import LIMIT

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
ASKED = {"prompt": [{"role": "user", "content": "What is 3 times 4?"}]}


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first integer.
        b: The second integer.
    """
    return a * b


def fail(kind: str) -> object:
    """Fail in one of many ways.

    Args:
        kind: Which way.
    """
    if kind == "hang":
        time.sleep(60)
    if kind == "leave":
        sys.exit(3)
    if kind == "deep":
        return fail(kind)
    if kind == "memory":
        raise MemoryError
    if kind == "surrogate":
        raise RuntimeError("\ud800")
    return {"long": "x" * 10_000_000, "none": None, "object": object(), "list": [{"type": "text"}]}[
        kind
    ]


async def wait(seconds: float) -> str:
    """Wait for some time.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "waited"


async def block(seconds: float) -> str:
    """Wait without letting others go on.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "waited"


TOOLS = [multiply, fail, wait, block]


def with_template(folder, name):
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text()
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_folder):
    return with_template(tiny_folder, "qwen2_5")


def episode(tokenizer, tools=TOOLS, room=100_000, **rules):
    environment = ToolEnvironment(tools)
    tokens = TurnTokens(tokenizer, [tokenizer.eos_token_id], None, tools)
    return Episode(
        EpisodeRules(ToolEnvironment, **{"turns": 99, **rules}), tokens, room, ASKED, environment
    )


def say(one, text):
    """Let the model write a turn."""
    ids = [*one.tokens.tokenizer(text)["input_ids"], one.tokens.end]
    assert write_turn(one, ids, max_tokens=len(ids) + 1) == len(ids)
    hear([one])
    while one.pending:
        one.read()


def called(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_a_call_is_answered_and_a_turn_without_one_is_the_last(tokenizer):
    one = episode(tokenizer)
    say(one, "I multiply." + called("multiply", a=3, b=4) + called("wait", seconds=0.0))
    assert not one.ended and one.messages[1:] == [
        {"role": "tool", "name": "multiply", "content": "12"},
        {"role": "tool", "name": "wait", "content": "waited"},
    ]
    say(one, "It is 12.")
    assert (
        one.ended
        and not one.truncated
        and one.world.calls == 2
        and one.world.failed_calls == one.world.failures == 0
    )
    assert one.messages[-1] == {"role": "assistant", "content": "It is 12."}
    assert as_text(one.messages).splitlines() == [
        "I multiply.",
        'multiply({"a": 3, "b": 4})',
        'wait({"seconds": 0.0})',
        "> 12",
        "> waited",
        "It is 12.",
    ]


@pytest.mark.parametrize(
    "name", ["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_6"]
)
def test_the_tokens_are_those_that_the_template_writes(tiny_folder, name):
    tokenizer = with_template(tiny_folder, name)
    one = episode(tokenizer)
    answers = [
        {"role": "tool", "name": n, "content": c}
        for n, c in (("multiply", "12"), ("wait", "waited"))
    ]
    calls = [
        {"type": "function", "function": {"name": a["name"], "arguments": {}}} for a in answers
    ]
    messages = [
        *ASKED["prompt"],
        {"role": "assistant", "content": "a turn", "tool_calls": calls},
        *answers,
    ]
    options = {"tools": TOOLS, "tokenize": False}
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options)
    turn = whole[
        : whole.rindex(tokenizer.eos_token, 0, whole.index("12")) + len(tokenizer.eos_token)
    ]
    assert tokenizer.decode(one.tokens.answer(answers, ended=True)) == whole.removeprefix(turn)
    assert (
        one.prompt_ids
        == tokenizer.apply_chat_template(ASKED["prompt"], add_generation_prompt=True, tools=TOOLS)[
            "input_ids"
        ]
    )


FAULTY_CALLS = [
    *(
        f"<tool_call>\n{text}\n</tool_call>"
        for text in (
            "",
            "{",
            "}",
            "[]",
            "null",
            "3",
            '"multiply"',
            '{"name": "multiply"',
            '{"name": "multiply", "arguments": {"a": 3,}}',
            '{"name": "multiply", "arguments": {"a": 3 "b": 4}}',
            "{'name': 'multiply'}",
            '{"arguments": {"a": 3}}',
            '{"name": 7}',
            '{"name": null, "arguments": {}}',
            '{"name": "multiply", "arguments": NaN}',
            "{" * 500,
            "[" * 5000,
            '{"a":' * 300,
            "multiply(3, 4)",
            '{"name": "multiply", "arguments": "{\\"a\\": 3"}',
        )
    ),
    *(
        called(name)
        for name in (
            "",
            "add",
            "Multiply",
            "multiply ",
            "__init__",
            "os.system",
            "eval",
            "é",
            "x" * 500,
            "\n",
        )
    ),
    *(
        called("multiply", **given)
        for given in (
            {},
            {"a": 3},
            {"b": 4},
            {"a": 3, "b": 4, "c": 5},
            {"x": 1, "y": 2},
            {"a": None, "b": 4},
            {"a": {}, "b": 2},
            {"a": "x", "b": "y"},
            {"self": 1, "a": 1, "b": 1},
            {"a": [], "b": []},
        )
    ),
    *(
        f"<tool_call>\n{json.dumps({'name': 'multiply', 'arguments': given})}\n</tool_call>"
        for given in (
            [3, 4],
            "3, 4",
            3,
            None,
            True,
            [],
            "",
            [{"a": 3}],
            1e400,
            "{}",
        )
    ),
]


def test_a_hundred_faulty_calls_are_answered_and_counted(tokenizer):
    """Two in a turn, and each a turn of its own: 150 in all.

    The model can go on, and a right call is answered after them.
    """
    one = episode(tokenizer, room=10**6, turns=1000)
    assert len(FAULTY_CALLS) == 50
    for text in FAULTY_CALLS:
        say(one, text)
    pairs = [a + b for a, b in pairwise(FAULTY_CALLS[20:])]
    for text in pairs:
        say(one, text)
    faults = [m["content"] for m in one.messages if m["role"] == "tool"]
    assert (
        not one.ended
        and one.world.calls == one.world.failed_calls == len(faults) >= 100
        and one.world.failures == 0
    )
    assert all(fault.startswith("error: ") and len(fault) < 1000 for fault in faults)
    say(one, called("multiply", a=3, b=4))
    assert one.messages[-1]["content"] == "12" and one.world.failed_calls == one.world.calls - 1


def test_ten_faulty_tools_are_answered_within_their_time(tokenizer):
    kinds = [
        "hang",
        "leave",
        "deep",
        "memory",
        "surrogate",
        "long",
        "none",
        "object",
        "list",
        "unknown",
    ]
    for kind in kinds:
        seconds = 0.3 if kind == "hang" else LIMIT
        one = episode(tokenizer, step_timeout=seconds, answer_characters=200)
        before = time.process_time()
        say(one, called("fail", kind=kind))
        assert time.process_time() - before < 20
        answer = one.messages[-1]
        assert answer["role"] == "tool" and len(answer["content"]) < 300, kind
        assert one.world.failed_calls == (
            kind in ("hang", "leave", "deep", "memory", "surrogate", "unknown")
        ), kind
        assert not one.ended
    one = episode(tokenizer, step_timeout=0.3)
    for text in (
        called("wait", seconds=30),
        called("block", seconds=2),
        called("fail", kind="hang"),
    ):
        say(one, text)
    late = ["error: timed out after 0.3 s"] * 2
    assert [m["content"] for m in one.messages if m["role"] == "tool"] == late
    assert (
        one.world.failed_calls == one.world.failures == 3 and one.ended
    )  # the third time ends the episode


@given(
    st.text(
        alphabet=st.sampled_from('{}[]":, \n<>/_toolcalnameargumentsmultiply0123'), max_size=200
    )
)
def test_any_text_is_a_turn(text):
    one = test_any_text_is_a_turn.episode
    one.end = ""
    before = one.turns
    message, fault = one.tokens.message(text, one.tokens.tokenizer(text)["input_ids"], [])
    one.take_turn(message, text, fault=fault)
    one.hear()
    one.pending.clear()
    assert one.turns == before + 1 and one.world.failures == 0


@pytest.fixture(autouse=True)
def _episode_for_hypothesis(tokenizer):
    test_any_text_is_a_turn.episode = episode(tokenizer, turns=10**9)


class Counter:
    """An environment as TRL's documentation has it."""

    made = 0

    def __init__(self):
        type(self).made += 1

    def reset(self, start: int = 0, **kwargs):
        self.count = start
        return f" Start at {start}."

    def increment(self, step: int) -> int:
        """Increment the counter.

        Args:
            step: By how much.

        Returns:
            The new value.
        """
        self.count += step
        return self.count

    def get_reward(self) -> float:
        return float(self.count)

    def _hidden(self) -> None:
        raise AssertionError


class Strict(Counter):
    """Takes no columns that it does not name."""

    def reset(self, prompt, start):
        self.count = start


def options(**more):
    return GRPOExtConfig("out", max_completion_length=2000, use_cpu=True, bf16=False, **more)


def test_environments_of_trl_are_reset_and_kept(tokenizer):
    Counter.made = 0
    begin = beginning_with_tools(
        [multiply], {None: Counter}, tokenizer, [tokenizer.eos_token_id], options()
    )
    rows = [{**ASKED, "start": start} for start in (0, 5, 7)]
    for _ in range(2):
        first, second, third = begin(rows)
        assert first.prompt[-1]["content"] == "What is 3 times 4? Start at 0."
        assert [tool.__name__ for tool in first.environment.tools()] == ["multiply", "increment"]
        for one in (first, second):
            say(one, called("increment", step=2))
            say(one, called("_hidden"))
        assert [e.environment.instance.count for e in (first, second, third)] == [2, 7, 7]
        assert first.messages[-1]["content"].startswith("error: there is no tool '_hidden'")
        assert first.columns() == {} and first.environment.state() == {"score": 2.0, "count": 2}
    assert Counter.made == 3


def test_each_row_names_its_environment(tokenizer):
    factories = {"counting": Counter, "strict": Strict}
    begin = beginning_with_tools(
        [], factories, tokenizer, [tokenizer.eos_token_id], options(max_tool_calling_iterations=1)
    )
    one, other = begin(
        [{**ASKED, "start": 1, "environment": name} for name in ("counting", "strict")]
    )
    assert type(one.environment.instance) is Counter and type(other.environment.instance) is Strict
    assert one.world.failures == other.world.failures == 0
    say(other, called("increment", step=2))
    assert not other.ended
    say(other, called("increment", step=2))
    assert other.ended and other.turns == 2
    with pytest.raises(
        ValueError, match=r"'count', which is not in environment_factory.*: counting, strict"
    ):
        begin([{**ASKED, "environment": "count"}])


def test_a_recipe_names_such_a_class(tokenizer):
    begin = beginning({"": f"{__file__}:Counter"}, tokenizer, [tokenizer.eos_token_id], options())
    [one] = begin([{**ASKED, "start": 3}])
    say(one, called("increment", step=1))
    say(one, "done")
    assert one.ended and one.columns()["environment"] == {"score": 4.0, "count": 4}
    assert one.columns()["turns"][1] == "done"


def test_templates_that_cannot_hold_tools_are_refused(tiny_folder):
    for name in ("gemma", "phi3"):
        tokenizer = with_template(tiny_folder, name)
        with pytest.raises(ValueError, match="chat template"):
            TurnTokens(tokenizer, tokenizer.get_added_vocab().values(), None, TOOLS)


class Both(Environment):
    """Has a tool, and answers turns without calls."""

    def tools(self):
        return [multiply]

    def step(self, text):
        return "Go on.", False


def test_a_template_must_also_hold_the_answers_of_step(tiny_folder):
    """Qwen3's own drops thoughts before a user's message, which only `step` writes.

    TRL's variant keeps them.
    """
    tokenizer = with_template(tiny_folder, "qwen3")
    begin = beginning({"": f"{__file__}:Both"}, tokenizer, [tokenizer.eos_token_id], options())
    [one] = begin([ASKED])
    say(one, "<think>\nhm\n</think>\n\nI do not know.")
    assert one.messages[-1] == {"role": "user", "content": "Go on."} and not one.ended


def test_calls_of_the_last_turn_are_not_made(tokenizer):
    one = episode(tokenizer, turns=2)
    say(one, called("multiply", a=3, b=4))
    say(one, called("multiply", a=5, b=4))
    assert one.ended and not one.truncated and one.world.calls == 1


def test_all_calls_of_a_turn_share_their_time(tokenizer):
    one = episode(tokenizer, step_timeout=0.5)
    before = time.process_time()
    say(
        one,
        called("fail", kind="hang") + called("wait", seconds=30) + called("wait", seconds=0) * 3,
    )
    assert (
        time.process_time() - before < 20 and one.world.calls == 5 and one.world.failed_calls >= 2
    )
    assert one.messages[1]["content"] == "error: timed out after 0.5 s"
    assert (
        one.world.failures == 1 and not one.ended
    )  # one turn, however many of its calls were late


class Leaves(Environment):
    """Its tools, errors and exits are as bad as can be."""

    def tools(self):
        return [self.leave, self.speechless]

    async def leave(self) -> str:
        """Leave the program."""
        sys.exit(3)

    def speechless(self) -> str:
        """Raise an error that cannot be written."""

        class Silent(Exception):
            def __str__(self):
                raise RuntimeError

        raise Silent


def test_exits_and_errors_without_words_are_answers(tokenizer):
    begin = beginning(
        {"": {"name": f"{__file__}:Leaves"}}, tokenizer, [tokenizer.eos_token_id], options()
    )
    one, other = begin([ASKED, ASKED])
    say(one, called("leave") + called("speechless"))
    assert [m["content"] for m in one.messages[1:]] == [
        "error: RuntimeError: SystemExit: 3",
        "error: Silent",
    ]
    say(other, called("leave"))  # the loop of async tools goes on
    assert other.messages[-1]["content"] == "error: RuntimeError: SystemExit: 3"


@pytest.mark.parametrize(
    ("end", "stops", "fault"),
    [
        ("</tool_call>", [], "could not be read"),
        ("</tool_call>", ["</tool_call>"], "could not be read"),
        ("", [], "ended before the call was complete"),
    ],
)
def test_a_call_that_is_wrong_and_one_that_is_cut_off_are_told_apart(tokenizer, end, stops, fault):
    tokens = TurnTokens(tokenizer, [tokenizer.eos_token_id], tools=[multiply], stop_strings=stops)
    text = '<tool_call>\n{"name": "multiply", "arguments": {"a": 1, b: 2}}\n' + end
    ids = tokens.tokens_of(text)
    if end and not stops:
        ids.append(tokenizer.eos_token_id)
    _, error = tokens.message(text, ids, tokens.tokens_of("Multiply."))
    assert error is not None and fault in error["content"]


def test_text_that_later_readers_could_not_write(tokenizer):
    one = episode(tokenizer)
    say(
        one,
        '<tool_call>\n{"name": "multiply", "arguments": {"a": "\\ud800", "b": 1}}\n</tool_call>',
    )
    json.dumps(one.messages, ensure_ascii=False).encode()
    say(one, called("multiply", a=json.loads("[" * 100 + "]" * 100), b=1))
    assert one.messages[-1]["content"].startswith("error: the call could not be read")
    say(one, "I need no <tool_call> here: the answer is 12.")
    assert one.ended and one.world.failed_calls == 1 and one.world.calls == 2
