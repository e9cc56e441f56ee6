"""TRL's `tools` and `environment_factory` through ours.

Its documented examples, and completions that really call.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.samplers.base import Sampler, SamplerAbilities
from grpo_ext.samplers.lockstep_episodes import Turn, play_by_turns
from tests.support.logs import json_rows
from tests.support.tiny_run import arguments_of

TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


async def add(a: int, b: int) -> int:
    """
    Adds two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The sum of the two integers.
    """
    return a + b


class IncrementEnv:
    def reset(self, **kwargs):
        self.counter = 0

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter


class RewardedEnv(IncrementEnv):
    def get_reward(self) -> float:
        return float(self.counter)


def of_the_counter(environments, **kwargs):
    return [environment.counter for environment in environments]


def exact(completions, answer, **kwargs):
    return [
        float(messages[-1]["content"].strip() == str(right))
        for messages, right in zip(completions, answer, strict=True)
    ]


ROWS = [
    {"prompt": [{"role": "user", "content": f"What is {a} times 4?"}], "a": a, "answer": 4 * a}
    for a in range(1, 9)
]


class Calling(Sampler):
    """An engine that calls `name` with the row's number in every other completion, and then says
    what it was told.
    """

    name = "scripted"
    abilities = SamplerAbilities(plays_episodes=True)

    def __init__(self, tokenizer, tool, **arguments):
        self.tokenizer, self.tool, self.arguments = tokenizer, tool, arguments

    def sample(self, request):
        def turn(contexts, left):
            texts = [self.say(i, self.tokenizer.decode(ids)) for i, ids in enumerate(contexts)]
            ids = [
                [*self.tokenizer(text)["input_ids"], self.tokenizer.eos_token_id][:left]
                for text in texts
            ]
            return [Turn(row, [None] * len(row)) for row in ids]

        return play_by_turns(request, turn)

    def say(self, i, context):
        asked = context.rpartition("What is ")[2]
        if "<tool_response>" in asked:
            return asked.rpartition("<tool_response>\n")[2].partition("\n")[0]
        if i % 2:
            return "5"
        arguments = (
            {"a": int(asked.split()[0]), **self.arguments}
            if self.tool == "multiply"
            else self.arguments
        )
        return (
            f"<tool_call>\n{json.dumps({'name': self.tool, 'arguments': arguments})}\n</tool_call>"
        )


class Noting(GRPOExtTrainer):
    """Keeps the micro-batches that it trains on."""

    used = ()

    def _compute_loss(self, model, inputs):
        self.used = [*self.used, inputs]
        return super()._compute_loss(model, inputs)


@pytest.fixture
def tokenizer(tiny_folder):
    made = AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")
    made.chat_template = TEMPLATE.read_text()
    return made


def run(
    tiny_folder,
    tokenizer,
    out,
    rewards,
    sampler=None,
    cls=Noting,
    config=GRPOExtConfig,
    settings=None,
    **given,
):
    limits = {"max_completion_length": 120, "max_steps": 1}
    args = arguments_of(config, out, **{**limits, **(settings or {})})
    more = {"sampler": sampler} if sampler else {}
    rows = Dataset.from_list(ROWS)
    trainer = cls(
        str(tiny_folder), rewards, args, rows, processing_class=tokenizer, **more, **given
    )
    trainer.train()
    return trainer, trainer.state.log_history[0]


def test_calls_are_made_and_masked(tiny_folder, tokenizer, tmp_path):
    scripted = Calling(tokenizer, "multiply", b=4)
    trainer, logged = run(
        tiny_folder, tokenizer, tmp_path, [exact], scripted, tools=[multiply, add]
    )
    assert (
        logged["rewards/exact/mean"] == logged["tools/call_frequency"] == 0.5
        and logged["tools/failure_frequency"] == 0
    )
    assert logged["episodes/turns"] == 1.5
    rows = trainer.used[0].rows
    for ids, said, wrote in zip(
        rows.completion_ids, rows.completion_mask.bool(), rows.tool_mask.bool(), strict=True
    ):
        told = tokenizer.decode(ids[said & ~wrote])
        own = tokenizer.decode(ids[said & wrote])
        called = "<tool_call>" in own
        assert ("<tool_response>" in told) is called and "<tool_response>" not in own
        assert not called or own.count("<|im_end|>") == 2


class Padding(IncrementEnv):
    """Fills every other prompt beyond the engine's context."""

    def reset(self, **row):
        super().reset(**row)
        return " and" * 2000 * (row["a"] % 2)


def test_a_prompt_without_room_beside_an_engine_leaves_the_others_theirs(
    tiny_folder, tokenizer, tmp_path, caplog
):
    asked = []

    class Engine(Calling):
        def sample(self, request):
            def turn(contexts, left):
                asked.append((left, max(map(len, contexts))))
                said = [*self.tokenizer("5")["input_ids"], self.tokenizer.eos_token_id]
                ids = [said[:left] for _ in contexts]
                return [Turn(row, [None] * len(row)) for row in ids]

            return play_by_turns(request, turn)

    class Colocated(Noting):
        """As beside a vLLM whose context is 1,500 tokens."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made = self.parts.generations
            made.ends = replace(made.ends, context=1500)

    scripted = Engine(tokenizer, "increment")
    trainer, logged = run(
        tiny_folder,
        tokenizer,
        tmp_path,
        [of_the_counter],
        scripted,
        Colocated,
        environment_factory=Padding,
        settings={"log_samples": 1.0, "shuffle_dataset": False},
    )
    assert logged["completions/clipped_ratio"] == 0.5 and logged["episodes/turns"] == 0.5
    assert asked and all(left > 0 and longest <= 1500 for left, longest in asked)
    assert "4 of 8 episodes on this rank have a prompt that leaves no room" in caplog.text
    samples = json_rows(tmp_path / "samples.jsonl")
    assert sorted(sample["finish_reason"] for sample in samples) == ["length"] * 4 + ["stop"] * 4
    trainer.parts.generations.ends = replace(trainer.parts.generations.ends, context=10)
    with pytest.raises(ValueError, match="No prompt of this generation leaves room"):
        trainer.train()


def test_environments_reach_the_rewards(tiny_folder, tokenizer, tmp_path):
    scripted = Calling(tokenizer, "increment", step=3)
    _, logged = run(
        tiny_folder,
        tokenizer,
        tmp_path,
        [of_the_counter],
        scripted,
        environment_factory=RewardedEnv,
    )
    assert logged["rewards/of_the_counter/mean"] == logged["rewards/RewardedEnv/mean"] == 1.5


@pytest.mark.parametrize(
    "given, rewards",
    [
        ({"tools": [multiply, add]}, [exact]),
        ({"environment_factory": IncrementEnv}, of_the_counter),
        ({"environment_factory": RewardedEnv}, None),
    ],
    ids=["tools", "environment_factory", "get_reward"],
)
def test_examples_of_trl_run(tiny_folder, tokenizer, tmp_path, given, rewards):
    config = GRPOConfig if rewards is None else GRPOExtConfig
    trainer, logged = run(tiny_folder, tokenizer, tmp_path, rewards, config=config, **given)
    assert logged["tools/call_frequency"] >= 0 and trainer.used[0].rows.tool_mask is not None


def generate_of_its_own(model, tokenizer, say):
    """Let `model.generate` return what `say` says after each context, without processors."""
    calls = []

    def generate(input_ids, **kwargs):
        calls.append(len(input_ids))
        texts = [say(i, tokenizer.decode(ids)) for i, ids in enumerate(input_ids)]
        rows = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
        width = max(map(len, rows))
        padded = [ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids in rows]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)

    model.generate = generate
    return calls


class OwnGenerate(Noting):
    """A trainer whose model has a `generate` that is not transformers'."""

    calls = ()

    def train(self):
        scripted = Calling(self.processing_class, "multiply", b=4)
        self.calls = generate_of_its_own(self.model, self.processing_class, scripted.say)
        return super().train()


def test_a_generate_that_is_not_transformers_plays_turn_by_turn(tiny_folder, tokenizer, tmp_path):
    trainer, logged = run(
        tiny_folder, tokenizer, tmp_path, [exact], cls=OwnGenerate, tools=[multiply, add]
    )
    assert logged["rewards/exact/mean"] == logged["tools/call_frequency"] == 0.5
    assert logged["tools/failure_frequency"] == 0 and logged["episodes/turns"] == 1.5
    assert trainer.calls[-2:] == [8, 4]  # a second turn of the half that called
    rows = trainer.used[0].rows
    assert (rows.tool_mask * rows.completion_mask).sum() < rows.completion_mask.sum()


class PromptEnv:
    """An environment of TRL's kind without tools, which writes the prompt."""

    def reset(self, **kwargs):
        return " Say a word of five letters."


def test_an_environment_without_tools_writes_the_prompt(tiny_folder, tokenizer, tmp_path):
    trainer, _ = run(
        tiny_folder,
        tokenizer,
        tmp_path,
        lambda completions, **kwargs: [1.0] * len(completions),
        environment_factory=PromptEnv,
    )
    prompts = tokenizer.batch_decode(trainer.used[0].rows.prompt_ids)
    assert all("times 4? Say a word of five letters." in prompt for prompt in prompts)


def test_both_are_evaluated_greedily(tiny_folder, tokenizer, tmp_path):
    settings = {"eval_temperature": 0.0, "eval_strategy": "steps", "eval_steps": 1}
    trainer, _ = run(
        tiny_folder,
        tokenizer,
        tmp_path,
        None,
        settings=settings,
        environment_factory=RewardedEnv,
        eval_dataset=Dataset.from_list(ROWS[:2]),
    )
    assert any("eval_RewardedEnv" in entry for entry in trainer.state.log_history)


def test_one_world_at_a_time(tiny_folder, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="Remove the options or the arguments"):
        run(
            tiny_folder,
            tokenizer,
            tmp_path,
            [exact],
            tools=[multiply],
            settings={"environment": "guess"},
        )


def test_what_is_trained_on_is_what_trl_would_have_read(tiny_folder, tokenizer, tmp_path):
    """The tokens of a whole episode beside the template's own rendering of it as a conversation."""
    scripted = Calling(tokenizer, "multiply", b=4)
    trainer, _ = run(tiny_folder, tokenizer, tmp_path, [exact], scripted, tools=[multiply])
    rows = trainer.used[0].rows
    whole = [
        tokenizer.decode(torch.cat([p[pm.bool()], c[cm.bool()]]))
        for p, pm, c, cm in zip(
            rows.prompt_ids,
            rows.prompt_mask,
            rows.completion_ids,
            rows.completion_mask,
            strict=True,
        )
    ]
    for text in whole:
        asked = text.rpartition("What is ")[2].split()[0]
        messages = [{"role": "user", "content": f"What is {asked} times 4?"}]
        if "<tool_response>" in text:
            function = {"name": "multiply", "arguments": {"a": int(asked), "b": 4}}
            messages += [
                {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
            ]
            messages += [{"role": "tool", "name": "multiply", "content": str(4 * int(asked))}]
        said = str(4 * int(asked)) if len(messages) > 1 else "5"
        messages += [{"role": "assistant", "content": said}]
        expected = tokenizer.apply_chat_template(messages, tools=[multiply], tokenize=False)
        assert text == expected.removesuffix("\n")
