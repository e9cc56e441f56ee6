"""The demos by name, with the parts of each tiny model and its demonstrations."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from trl.chat_template_utils import qwen2_5_chat_template

from grpo_ext.common.files import write_atomically
from grpo_ext.environments.check import Check
from grpo_ext.rewards.answers import TAGS
from grpo_ext.tasks import Task
from grpo_ext.tiny.demonstrations import (
    Demonstration,
    check_demonstrations,
    countdown_demonstrations,
    guess_demonstrations,
)
from grpo_ext.tiny.model import build_model, compose_numbers
from grpo_ext.tiny.tokenizer import CHARACTERS, DIGITS, NUMBERS, TERSE, build_tokenizer
from grpo_ext.tiny.verse import Poet, verse_demonstrations
from grpo_ext.tiny.word_problems import word_problem_demonstrations


@dataclass(frozen=True)
class Demo:
    """The parts of a demo."""

    recipe: str  # path in `recipes/`
    sft_recipe: str
    demonstrations: Callable[
        ..., Iterator[Demonstration]
    ]  # called with a task, a count and a `seed`
    count: int  # number of demonstrations
    tokenizer: Callable[[Any], dict[str, Any]]  # returns options of `build_tokenizer` for a task
    shape: dict[str, Any]  # options of `build_model`
    composed: bool = False  # whether numbers begin as sums of their digits (`compose_numbers`)
    settings: dict[str, Any] = field(default_factory=dict)  # of GRPO, beside the recipe's

    def prepare(self, task: Task | dict[str, Task], folder: Path, seed: int) -> None:
        """Write `demonstrations.jsonl` and, in `model`, a tokenizer trained on the first 2,000 and an untrained model."""
        rows = list(self.demonstrations(task, self.count, seed=seed))
        write_atomically(
            folder / "demonstrations.jsonl",
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
        )
        corpus = [
            text
            for row in rows[:2000]
            for part in ("prompt", "completion")
            for text in texts_of(row[part])
        ]
        tokenizer = build_tokenizer(corpus, **self.tokenizer(task))
        tokenizer.save_pretrained(folder / "model")
        model = build_model(tokenizer, architecture="qwen3", seed=seed, **self.shape)
        if self.composed:
            compose_numbers(model, tokenizer, seed)
        model.save_pretrained(folder / "model")


def texts_of(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the texts of messages and of the calls in them."""
    for message in messages:
        yield message["content"]
        for call in message.get("tool_calls", ()):
            yield call["function"]["arguments"]["expression"]


def demonstrations_of_two(
    tasks: dict[str, Any], count: int, *, seed: int = 0
) -> Iterator[Demonstration]:
    """Yield `count` demonstrations, in turn of Countdown and of word problems."""
    sums = countdown_demonstrations(tasks["countdown"], count - count // 2, seed=seed)
    stories = word_problem_demonstrations(tasks["stories"], count // 2, seed=seed)
    for one, other in zip_longest(sums, stories):
        yield from (row for row in (one, other) if row is not None)


def check_tokenizer(task: Any) -> dict[str, Any]:
    """Return options with Qwen2.5's template, where the description of the tool and the frame of a call are single tokens."""
    before, after = (
        '<tool_call>\n{"name": "check", "arguments": {"expression": "',
        '"}}\n</tool_call>',
    )
    asked = {"role": "user", "content": "?"}
    options: dict[str, Any] = {
        "chat_template": qwen2_5_chat_template,
        "tools": [Check().check],
        "tokenize": False,
    }
    system = str(build_tokenizer([]).apply_chat_template([asked], **options)).partition(
        "<|im_end|>"
    )[0]
    tags = (
        *TAGS,
        before,
        after,
        "<tool_response>\n",
        "\n</tool_response>",
        system.removeprefix("<|im_start|>"),
    )
    return {"pattern": NUMBERS, "tags": tags, "template": qwen2_5_chat_template}


# options of `build_model`
NARROW = {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 3}
WIDE_INIT = {"initializer_range": 0.04}
OVERLAP = {
    "sampler": "process",
    "sampler_device": "cpu",
    "overlap": "one_step",
    "behaviour_policy": "sampler",
}  # a core each
DEMOS = {
    # three small numbers, plus and minus, and a model that makes honest attempts but gives up early
    "countdown": Demo(
        "countdown/tiny.yaml", "countdown/tiny-sft.yaml", countdown_demonstrations, 12_800, lambda task: {"pattern": NUMBERS},
        {**NARROW, **WIDE_INIT}, settings=OVERLAP,
    ),
    # four numbers to 99 and all operators; the attempts only add and subtract
    "countdown-hard": Demo(
        "countdown/hard-tiny.yaml", "countdown/hard-tiny-sft.yaml",
        partial(countdown_demonstrations, operators="+-", give_up=0.5), 38_400, lambda task: {"pattern": NUMBERS},
        {**NARROW, **WIDE_INIT}, composed=True, settings=OVERLAP,
    ),
    # word problems of one or two steps, and a model that can calculate but is careless with the problem
    "gsm8k": Demo(
        "gsm8k/tiny.yaml", "gsm8k/tiny-sft.yaml", word_problem_demonstrations, 12_800,
        lambda task: {"vocab_size": 640, "pattern": DIGITS}, WIDE_INIT,
    ),
    # Countdown and word problems in one run, each with rewards of its own, by one model
    "several": Demo(
        "several/tiny.yaml", "several/tiny-sft.yaml", demonstrations_of_two, 12_800,
        lambda tasks: {"vocab_size": 640, "pattern": DIGITS}, WIDE_INIT,
    ),
    # last lines of quatrains, and a model that knows tones and rhymes but uses them carelessly
    "poem": Demo(
        "poem/tiny.yaml", "poem/tiny-sft.yaml", verse_demonstrations, 9_600,
        # rare characters stay in pieces, as new ones will be; a rhyme group is one token
        lambda task: {"vocab_size": 1280, "pattern": CHARACTERS, "tags": (*TAGS, *Poet(task).ends)}, WIDE_INIT,
    ),
    # a number of 1 to 31 in five guesses, and a model that plays by the rules but guesses blindly
    "guess": Demo(
        "guess/tiny.yaml", "guess/tiny-sft.yaml", guess_demonstrations, 6_400,
        lambda task: {"pattern": NUMBERS, "template": TERSE}, NARROW,
    ),
    # Countdown with a tool that checks expressions, and a model that calls it but ignores its answers
    "check": Demo(
        "countdown/check-tiny.yaml", "countdown/check-tiny-sft.yaml", check_demonstrations, 8_000, check_tokenizer,
        {**NARROW, **WIDE_INIT},
    ),
}  # fmt: skip
