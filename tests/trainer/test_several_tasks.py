"""Rows of two tasks in one run, each with a reward that returns None for the other's rows, as TRL
documents it.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from grpo_ext import GRPOExtConfig
from grpo_ext.common.hashes import prompt_id
from grpo_ext.curriculum.pass_rates import read_pass_rates
from tests.support.fixed_completions import lucky
from tests.support.scripted_groups import Filtered, Scripted, prompt_of

GROUP = 4
EQUAL = {3: 0.0, 4: 1.0, 7: 0.0, 8: 1.0}  # prompt -> what each of its completions scores


def scores(completions, completion_ids, number):
    values = lucky(completions, completion_ids)
    return [EQUAL.get(n, float(v >= 2)) for n, v in zip(number, values, strict=True)]


def of_sums(completions, completion_ids, number, kind, **kwargs):
    found = scores(completions, completion_ids, number)
    return [s if k == "sums" else None for s, k in zip(found, kind, strict=True)]


def of_products(completions, completion_ids, number, kind, **kwargs):
    found = scores(completions, completion_ids, number)
    return [1 - s if k == "products" else None for s, k in zip(found, kind, strict=True)]


def brevity(completions, completion_ids, **kwargs):
    return [0.1 * len(ids) for ids in completion_ids]


REWARDS = (of_sums, of_products, brevity)


class NeverEmpty(Scripted):
    """TRL fails on an empty completion."""

    def _generate_single_turn(self, *args, **kwargs):
        completions, logps = super()._generate_single_turn(*args, **kwargs)
        return [ids or [7] for ids in completions], logps


class Ours(NeverEmpty, Filtered):
    pass


class PlainTRL(NeverEmpty):
    def __init__(self, *args, **kwargs):
        self.calls = []
        super().__init__(*args, **kwargs)


def kind_of(number: int) -> str:
    return "sums" if number % 2 else "products"


def train(
    folder, out, numbers, *, groups=4, steps=1, named=True, trl=False, rewards=REWARDS, **settings
):
    """Train on the prompts of these numbers, in this order; `named`: rows name their task."""
    rows = [{"prompt": prompt_of(n), "number": n, "kind": kind_of(n)} for n in numbers]
    if named:
        rows = [{**row, "task": row["kind"]} for row in rows]
    args = (GRPOConfig if trl else GRPOExtConfig)(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=groups * GROUP,
        num_generations=GROUP,
        max_completion_length=9,
        reward_weights=settings.pop("reward_weights", [1.0, 0.5, 0.25]),
        learning_rate=0.0,
        shuffle_dataset=False,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **settings,
    )
    trainer = (PlainTRL if trl else Ours)(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=list(rewards),
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
    )
    if settings.get("group_filter") == "refill":
        trainer.parts.order.further.position = groups * steps
    trainer.train()
    return trainer


def test_a_reward_that_declines_rows_has_the_mean_of_the_others_as_in_trl(tiny_folder, tmp_path):
    ours = train(tiny_folder, tmp_path / "ours", range(1, 5), named=False).state.log_history[0]
    theirs = train(tiny_folder, tmp_path / "trl", range(1, 5), trl=True).state.log_history[0]
    for key in ("of_sums", "of_products", "brevity"):
        assert ours[f"rewards/{key}/mean"] == pytest.approx(theirs[f"rewards/{key}/mean"], abs=1e-6)
        assert ours[f"rewards/{key}/std"] == pytest.approx(theirs[f"rewards/{key}/std"], abs=1e-6)
    assert ours["reward"] == pytest.approx(theirs["reward"], abs=1e-6)
    assert ours["rewards/of_sums/mean"] != 0


def test_a_reward_that_scored_no_row_has_no_mean(tiny_folder, tmp_path):
    logs = train(tiny_folder, tmp_path, [1, 3, 5, 9]).state.log_history[0]
    assert "rewards/of_sums/mean" in logs and "rewards/of_products/mean" not in logs


@pytest.mark.parametrize("named", [True, False])
def test_refill_keeps_the_groups_of_both_tasks(tiny_folder, tmp_path, named):
    """Of the first four prompts 3 and 4 have equal rewards; the next ones take their places."""
    trainer = train(
        tiny_folder, tmp_path, range(1, 17), named=named, group_filter="refill", max_staleness=0
    )
    assert trainer.calls == [[1, 2, 3, 4], [5, 6]]
    logs = trainer.state.log_history[0]
    assert (logs["groups/generated"], logs["groups/kept"], logs["groups/missing"]) == (6, 4, 0)
    assert (logs["groups/all_right"], logs["groups/all_wrong"]) == (0, 2 / 6)
    assert logs["groups/unscored"] == 0
    used = trainer.parts.feed.generation
    assert sum(int(part.counted.sum()) for part in used) == 4 * GROUP
    if named:
        assert logs["tasks/sums/groups/kept"] == logs["tasks/products/groups/kept"] == 2
        assert logs["tasks/sums/groups/generated"] == 3


def test_the_curriculum_sees_both_tasks(tiny_folder, tmp_path):
    settings = {"curriculum": "adaptive", "steps": 4, "pass_rate_decay": 1.0}
    trainer = train(tiny_folder, tmp_path, range(1, 9), named=False, **settings)
    rates = trainer.parts.order.rates
    asked = {number for call in trainer.calls for number in call}
    assert any(n % 2 for n in asked) and any(n % 2 == 0 for n in asked)
    seen = {n for n in range(1, 9) if rates.samples[rates.numbers[prompt_id(prompt_of(n))]]}
    assert seen == asked
    order = ["of_sums", "of_products", "brevity"]
    logged = read_pass_rates(tmp_path / "samples.jsonl", order, 1.0)
    for n in asked:
        number = rates.numbers[prompt_id(prompt_of(n))]
        assert logged[prompt_id(prompt_of(n))] == (rates.right[number], rates.samples[number])


def test_figures_by_task_are_those_of_two_runs(tiny_folder, tmp_path):
    """With a learning rate of 0, each task has the same completions in a run of its own."""
    whole = train(tiny_folder, tmp_path / "both", range(1, 13), steps=3).state.log_history
    for task, numbers in (("sums", range(1, 13, 2)), ("products", range(2, 13, 2))):
        alone = train(
            tiny_folder, tmp_path / task, numbers, groups=2, steps=3, named=False
        ).state.log_history
        for ours, own in zip(whole[:3], alone[:3], strict=True):
            prefix = f"tasks/{task}/"
            by_task = {k.removeprefix(prefix): v for k, v in ours.items() if k.startswith(prefix)}
            assert {"reward", "reward_std", "groups/mixed", "groups/pass_rate"} <= by_task.keys()
            assert "completions/mean_length" in by_task and "rewards/brevity/mean" in by_task
            for name, value in by_task.items():
                assert value == pytest.approx(own[name], abs=1e-6), name
            starts = ("rewards/", "groups/", "completions/", "reward", "frac_")
            assert {name for name in own if name.startswith(starts)} == by_task.keys()


def test_the_sum_in_the_log_is_the_one_that_was_trained_on(tiny_folder, tmp_path):
    """A row that one reward did not score counts with the mean of its group, in the log as in the
    advantages.
    """

    def right(completions, **kwargs):
        return [1.0] * len(completions)

    def flaky(completions, **kwargs):
        return [None if i % GROUP == 0 else 1.0 for i in range(len(completions))]

    train(tiny_folder, tmp_path, range(1, 5), rewards=[right, flaky], reward_weights=[1.0, 0.5])
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    rows = list(map(json.loads, lines))
    assert [row["rewards"]["flaky"] for row in rows[:2]] == [None, 1.0]
    assert {row["reward"] for row in rows} == {1.5}
    assert {row["advantage"] for row in rows} == {0.0}
    assert {row["task"] for row in rows} == {"sums", "products"}


def test_rows_without_a_task_on_one_rank_alone_keep_the_ranks_together(tiny_folder, tmp_path):
    """Both ranks gather, although only the first has rows that name their task."""
    trainer = train(tiny_folder, tmp_path, range(4))
    generations = trainer.parts.generations
    calls = []

    def gather_with_other(mine):
        calls.append(mine)
        return [*mine, None]

    generations.ranks = replace(generations.ranks, count=2, gather_objects=gather_with_other)
    assert generations._tasks([{"task": "sums"}]) == []
    assert generations._tasks([{}]) == []
    assert calls == [["sums"], [None]]
