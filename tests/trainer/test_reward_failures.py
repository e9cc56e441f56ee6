"""A run with rewards that raise, return inf, or answer too little.

It goes on, or stops with a checkpoint and the reason.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

from grpo_ext import GRPOExtTrainer
from grpo_ext.curriculum.pass_rates import read_pass_rates
from grpo_ext.rewards.guard import Guard, RewardFailure
from grpo_ext.trainer.judging import Judge, rewards_for
from tests.support.logs import entries_with
from tests.support.tiny_run import tiny_arguments


def make(folder, out, rewards, **settings):
    args = tiny_arguments(
        out,
        per_device_train_batch_size=settings.pop("per_device_train_batch_size", 16),
        max_steps=settings.pop("max_steps", 4),
        learning_rate=1e-3,
        **settings,
    )
    rows = [
        {"prompt": [{"role": "user", "content": f"Use {a} and 1."}], "number": a} for a in range(8)
    ]
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    return GRPOExtTrainer(
        str(folder), rewards, args, Dataset.from_list(rows), processing_class=tokenizer
    )


def length(completions, **kwargs):
    return [float(len(c[0]["content"])) for c in completions]


class Faulty:
    """Raises on prompts whose number is in `raises`, returns inf where it is in `infinite`.

    Counts both.
    """

    def __init__(self, raises=(), infinite=()):
        self.raises, self.infinite, self.rows = raises, infinite, 0
        self.__name__ = "faulty"

    def __call__(self, completions, number, **kwargs):
        if len(completions) == 1:
            self.rows += number[0] in self.raises
        if any(n in self.raises for n in number):
            raise RuntimeError("no idea")
        return [
            math.inf if n in self.infinite else 1.0 / (1 + len(c[0]["content"]))
            for n, c in zip(number, completions, strict=True)
        ]


def test_raising_and_infinite_rewards_leave_the_run_healthy(tiny_folder, tmp_path):
    faulty = Faulty(raises=(1, 3), infinite=(5,))
    trainer = make(tiny_folder, tmp_path, [length, faulty])
    trainer.train()
    logs = entries_with(trainer, "loss")
    assert all(math.isfinite(entry["loss"]) and math.isfinite(entry["grad_norm"]) for entry in logs)
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    # 4 steps of 4 prompts run over the 8 prompts twice; 3 of 8 prompts are bad for all 4
    # completions
    assert logs[-1]["rewards/faulty/failed"] == 2 * 3 * 4
    assert all("rewards/length/failed" not in entry for entry in logs)
    assert faulty.rows == 2 * 2 * 4


TRL_WARNING = "All reward functions returned None"


def test_trl_does_not_warn_again_of_rows_on_which_a_reward_failed(tiny_folder, tmp_path, caplog):
    make(tiny_folder, tmp_path, [Faulty(raises=(1, 3))], max_steps=2).train()
    assert "Reward 'faulty' failed on a row" in caplog.text
    assert TRL_WARNING not in caplog.text


def test_trl_warns_of_rows_that_all_rewards_decline(tiny_folder, tmp_path, caplog):
    def declines(completions, number, **kwargs):
        return [
            None if n == 1 else score for n, score in zip(number, length(completions), strict=True)
        ]

    make(tiny_folder, tmp_path, [declines], max_steps=2).train()
    assert TRL_WARNING in caplog.text


def test_a_reward_that_always_fails_stops_the_run_with_a_checkpoint(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, [length, Faulty(raises=range(8))])
    with pytest.raises(RewardFailure, match=r"(?s)'faulty' failed on .* no idea"):
        trainer.train()
    step = trainer.state.global_step
    assert (tmp_path / f"checkpoint-{step}" / "model.safetensors").is_file()


def test_no_failure_allowed_stops_at_the_first(tiny_folder, tmp_path):
    trainer = make(
        tiny_folder, tmp_path, [length, Faulty(infinite=range(8))], reward_max_failure_rate=0.0
    )
    with pytest.raises(RewardFailure, match="inf"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_registered_rewards_are_taken_by_name(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, ["format", length])
    assert trainer.reward_func_names == ["format", "length"]
    trainer.train()
    assert "rewards/format/mean" in trainer.state.log_history[0]


def test_a_reward_that_fails_on_all_rows_of_a_step_stops_the_run_at_once(tiny_folder, tmp_path):
    """Two prompts of four completions: far fewer rows than the share of failures is judged by."""
    trainer = make(
        tiny_folder, tmp_path, [Faulty(raises=range(8))], max_steps=2, per_device_train_batch_size=8
    )
    with pytest.raises(
        RewardFailure,
        match=(
            r"(?s)'faulty' failed on every completion of its latest batches, .* no "
            r"idea \(.*\.py:\d+"
        ),
    ):
        trainer.train()
    assert trainer.state.global_step == 0


def test_one_bad_row_of_the_data_does_not_stop_a_run_of_one_prompt_a_step(tiny_folder, tmp_path):
    faulty = Faulty(raises=(3,))
    trainer = make(tiny_folder, tmp_path, [faulty], max_steps=8, per_device_train_batch_size=4)
    trainer.train()
    assert (
        trainer.state.log_history[-2]["rewards/faulty/failed"] == 4
        and trainer.state.global_step == 8
    )


@pytest.mark.parametrize(
    ("ranks", "stops"),
    [([True, True], True), ([True, False], False), ([False, False], False)],
)
def test_a_step_is_that_of_all_ranks(ranks, stops):
    """Each rank has one prompt, of which all completions fail or none does."""
    guards = []
    for rank, fails in enumerate(ranks):
        guards.append(Guard(Faulty(raises=(0,) if fails else ()), deferred=True))
        guards[-1](
            completions=[[{"content": "x"}]] * 2, prompts=[f"prompt {rank}"] * 2, number=[0, 0]
        )

    def settled(guard: Guard, gather) -> Judge:
        judge = Judge(SimpleNamespace(reward_funcs=[guard]))
        judge.count_failures(gather)
        return judge

    found = []
    for guard in guards:
        settled(guard, lambda mine: found.extend(mine) or [])
    if stops:
        with pytest.raises(RewardFailure, match="every completion"):
            settled(guards[0], lambda mine: found)
    else:
        assert settled(guards[0], lambda mine: found).failed.get("faulty", 0) == 2 * sum(ranks)


def test_rewards_that_seed_and_move_change_nothing_of_the_run(tiny_folder, tmp_path, monkeypatch):
    """The same weights, bit by bit, in the same folder, as with a reward that only counts."""

    class Restless:
        __name__ = "restless"

        def __call__(self, completions, **kwargs):
            random.seed(0)
            numpy.random.seed(0)
            torch.manual_seed(0)
            os.chdir("/")
            return length(completions)

    async def cancelled(completions, **kwargs):
        torch.manual_seed(1)
        raise asyncio.CancelledError

    found = {}
    for name, rewards in (("quiet", [length]), ("restless", [Restless(), cancelled])):
        monkeypatch.chdir(tmp_path)
        trainer = make(tiny_folder, name, rewards, temperature=1.0, reward_max_failure_rate=1.0)
        trainer.train()
        trainer.save_model()
        found[name] = [p.detach().clone() for p in trainer.model.parameters()]
    assert (tmp_path / "restless" / "model.safetensors").is_file()
    assert all(torch.equal(a, b) for a, b in zip(*found.values(), strict=True))


def test_unknown_names_and_weights_beyond_float32_are_refused_before_the_model_is_loaded():
    args = SimpleNamespace(reward_weights=[1e300], reward_workers=0)
    with pytest.raises(
        ValueError,
        match=r"weight of reward 'length' is 1e\+300, but must be .* from -10000 to 10000",
    ):
        rewards_for([length], args)
    with pytest.raises(ValueError, match=r"No reward is named 'fromat'.*Did you mean 'format'"):
        rewards_for("fromat", args)


def test_prompts_that_the_outcome_reward_failed_on_are_not_taken_for_unsolved(
    tiny_folder, tmp_path
):
    settings = {
        "curriculum": "adaptive",
        "group_filter_metric": "faulty",
        "reward_max_failure_rate": 1.0,
    }
    trainer = make(
        tiny_folder, tmp_path, [length, Faulty(raises={0, 1, 2, 3})], max_steps=3, **settings
    )
    trainer.train()
    samples = trainer.parts.order.rates.samples
    assert samples[:4].tolist() == [0] * 4 and samples[4:].sum() > 0
    order = ["faulty", "length"]
    logged = read_pass_rates(tmp_path / "samples.jsonl", order, trainer.args.pass_threshold)
    seen = {key for key, number in trainer.parts.order.rates.numbers.items() if samples[number]}
    assert logged.keys() == seen
