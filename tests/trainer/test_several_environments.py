"""Runs whose rows name their environments: exact gradients, and figures of each environment."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

from grpo_ext import GRPOExtTrainer
from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.environments.failures import EnvironmentFailure
from tests.support.episode_gradients import TRUNCATED, Gradients, Noting, oracle
from tests.support.episode_run import WORLD
from tests.support.logs import entries_with, json_rows
from tests.support.places import REPO
from tests.support.tiny_run import tiny_arguments

WORLDS = f"{REPO}/tests/support/worlds.py"
COUNTING = {**WORLD, "credit": "turn"}
WANDERING = {"name": f"{WORLDS}:Wandering", "turn_tokens": 5}
ENVIRONMENTS = {"counting": COUNTING, "wandering": WANDERING}
NAMES = ("counting", "wandering", None, "counting", None, "wandering", "wandering", "counting")


def row(number: int, name: str | None) -> dict:
    prompt = [{"role": "user", "content": f"Use {number} and {number + 1}."}]
    return {"prompt": prompt, "seed": number, "environment": name, "task": name or "plain"}


ROWS = [row(number, name) for number, name in enumerate(NAMES)]


def last_letter(completions, turns, environment, **columns):
    """Of the last turn, in rows of all environments and in those without one."""
    for messages, said, state in zip(completions, turns, environment, strict=True):
        assert [m["content"] for m in messages if m["role"] == "assistant"] == said
        assert (state is None) <= (len(messages) == 1)
    return [float(len(said[-1]) % 3) for said in turns]


def make(folder, out, callbacks=None, cls=GRPOExtTrainer, rows=None, rewards=None, **settings):
    usual = {
        "max_steps": 1,
        "learning_rate": 1e-2,
        "environments": ENVIRONMENTS,
        "max_completion_length": 60,
        "per_device_train_batch_size": 16,
        "shuffle_dataset": False,
    }
    args = tiny_arguments(out, max_grad_norm=1e9, **{**usual, **settings})
    return cls(
        str(folder),
        rewards or ["environment", last_letter],
        args,
        Dataset.from_list(rows or ROWS),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        callbacks=callbacks,
    )


@pytest.mark.parametrize(
    "more", [{}, TRUNCATED, {"sampler": "process"}], ids=["plain", "truncated", "process"]
)
def test_the_gradient_of_a_mixed_batch_is_that_of_the_formula(tiny_folder, tmp_path, more):
    """Turns of their own advantages, turns that share one, and rows of a single turn."""
    noted = Gradients()
    settings = {"loss_type": "dapo", "log_samples": 1.0, **more}
    trainer = make(tiny_folder, tmp_path, [noted], Noting, **settings)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert 1 - 1e-4 < logged["sampling/ratio/min"] <= logged["sampling/ratio/max"] < 1 + 1e-4
    sampling = more if "top_k" in more else {}
    wanted = oracle(tiny_folder, noted.weights, trainer.used, **sampling)
    off = noted.distances(wanted)
    assert max(off.values()) < 1e-5, off
    samples = json_rows(tmp_path / "samples.jsonl")
    assert len(samples) == 16
    for first in range(0, 16, 4):
        check_advantages(samples[first : first + 4], trainer.used)
    assert {sample["task"] for sample in samples} == {"counting", "wandering", "plain"}


def check_advantages(group, used):
    """GRPO's advantages of a group, from its rewards; each turn has its own in `counting`."""
    rewards = torch.tensor([sample["reward"] for sample in group])
    wanted = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    for sample, advantage in zip(group, wanted.tolist(), strict=True):
        assert sample["advantage"] == pytest.approx(advantage, abs=1e-4)
        assert ("messages" in sample) == (sample["task"] != "plain")
        if sample["task"] == "plain":
            assert sample["rewards"]["environment"] is None
            continue
        turns = [message for message in sample["messages"] if message["role"] == "assistant"]
        assert all("earned" in turn for turn in turns) == (sample["task"] == "counting")


def test_turns_share_an_advantage_only_without_credit_by_turn(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, cls=Noting, log_samples=1.0)
    trainer.train()
    tasks = [sample["task"] for sample in json_rows(tmp_path / "samples.jsonl")]
    [batch] = trainer.used
    table = batch.rows
    counts = {"counting": set(), "wandering": set(), "plain": set()}
    for i in range(len(table)):
        advantages = table.row_advantages[i].expand(table.width)
        of_turns = {round(a, 5) for a in advantages[table.loss_mask[i].bool()].tolist()}
        prompt = table.prompt_ids[i][table.prompt_mask[i].bool()].tolist()
        counts[task_of(trainer, prompt)].add(len(of_turns))
    assert max(counts["counting"]) > 1
    assert counts["wandering"] == counts["plain"] == {1}
    assert set(tasks) == set(counts)


def task_of(trainer, prompt):
    text = trainer.processing_class.decode(prompt)
    number = int(text.partition("Use")[2].split()[0])
    return ROWS[number]["task"]


def test_figures_are_those_of_each_environment(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, log_samples=1.0)
    trainer.train()
    [entry] = entries_with(trainer, "loss")
    samples = json_rows(tmp_path / "samples.jsonl")
    all_turns = []
    for name in ("counting", "wandering"):
        turns = []
        for sample in samples:
            if sample["task"] == name:
                roles = [message["role"] for message in sample["messages"]]
                turns.append(roles.count("assistant"))
        assert entry[f"environments/{name}/episodes/turns"] == pytest.approx(
            sum(turns) / len(turns)
        )
        all_turns += turns
    assert entry["episodes/turns"] == pytest.approx(sum(all_turns) / len(all_turns))
    assert entry["environments/counting/episodes/turns"] == 3
    assert not any("single_turn" in key for key in entry)


def of_one(name):
    return [row for row in ROWS if row["environment"] == name]


def test_an_evaluation_has_the_figures_of_runs_of_their_own(tiny_folder, tmp_path):
    """Greedy episodes do not depend on the other rows, so the figures are equal."""
    settings = {"eval_temperature": 0.0, "per_device_eval_batch_size": 4, "max_steps": 1}
    mixed = make(tiny_folder, tmp_path / "mixed", rewards=["environment"], **settings)
    figures = mixed.evaluate(Dataset.from_list(ROWS))
    for name in ("counting", "wandering"):
        alone = make(
            tiny_folder,
            tmp_path / name,
            rows=of_one(name) * 2,
            rewards=["environment"],
            environments=None,
            environment=ENVIRONMENTS[name],
            **settings,
        )
        own = alone.evaluate(Dataset.from_list(of_one(name)))
        compared = 0
        for key, value in own.items():
            if key.startswith("eval_episodes/") and "time" not in key:
                _, _, figure = key.partition("eval_")
                assert figures[f"eval_environments/{name}/{figure}"] == pytest.approx(value), key
                compared += 1
        assert compared >= 4
        score = own["eval_environment"]
        assert figures[f"eval_tasks/{name}/environment"] == pytest.approx(score)
    assert "eval_tasks/plain/environment" not in figures


def test_a_row_of_one_turn_is_that_of_a_run_without_environments(tiny_folder, tmp_path):
    settings = {
        "eval_temperature": 0.0,
        "log_samples": 1.0,
        "per_device_eval_batch_size": 8,
        "learning_rate": 1e-12,
    }
    mixed = make(tiny_folder, tmp_path / "mixed", rewards=[last_letter_of_texts], **settings)
    mixed.train()
    mixed.evaluate(Dataset.from_list(ROWS))
    plain = make(
        tiny_folder,
        tmp_path / "plain",
        rows=of_one(None) * 4,
        rewards=[last_letter_of_texts],
        environments=None,
        **settings,
    )
    plain.train()
    plain.evaluate(Dataset.from_list(of_one(None)))
    own = evaluated(tmp_path / "plain")
    among_others = evaluated(tmp_path / "mixed")
    assert len(own) == len(among_others) == 2
    for one, other in zip(own, among_others, strict=True):
        for sample in (one, other):
            sample.pop("group")
            sample.pop("time", None)
        assert one == other


def evaluated(folder):
    """The evaluated samples of rows of one turn."""
    samples = json_rows(folder / "samples.jsonl")
    return [s for s in samples if s["mode"] == "eval" and s["task"] == "plain"]


def last_letter_of_texts(completions, **columns):
    return [float(len(messages[-1]["content"]) % 3) for messages in completions]


def test_prompts_of_one_turn_are_those_of_a_run_without_environments(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path)
    episodes = trainer.parts.generations.begin(of_one(None))
    prompts = [row["prompt"] for row in of_one(None)]
    wanted = encode_prompts(prompts, trainer.processing_class, {})
    assert [episode.prompt_ids for episode in episodes] == wanted


@pytest.mark.parametrize(
    "rows, words",
    [
        (
            [{**ROWS[0], "environment": "countng"}] * 4,
            "unknown environment 'countng'. Did you mean 'counting'?",
        ),
        (
            [{"prompt": ROWS[0]["prompt"]}] * 4,
            "the rows have no column `environment`",
        ),
    ],
)
def test_rows_that_name_none_of_them_are_refused(tiny_folder, tmp_path, rows, words):
    with pytest.raises(ValueError) as told:
        make(tiny_folder, tmp_path, rows=rows)
    assert words in str(told.value)


def test_an_environment_that_fails_is_named(tiny_folder, tmp_path):
    failing = {"name": f"{WORLDS}:Failing", "turn_tokens": 4}
    environments = {**ENVIRONMENTS, "wandering": failing}
    with pytest.raises(EnvironmentFailure, match=r"The environment wandering .*: step failed"):
        make(
            tiny_folder, tmp_path, environments=environments, per_device_train_batch_size=32
        ).train()


def test_a_run_learns_in_both_environments(tiny_folder, tmp_path):
    """Even lengths of turns in one, those of 4 or 9 in the other, in 20 steps."""
    environments = {
        "counting": {**WORLD, "turn_tokens": 1},
        "bordering": {"name": f"{WORLDS}:Bordering", "turn_tokens": 2},
    }
    rows = [row(number, name) for number in range(8) for name in environments]
    trainer = make(
        tiny_folder,
        tmp_path,
        rows=rows,
        rewards=["environment"],
        environments=environments,
        max_steps=20,
        per_device_train_batch_size=64,
        num_generations=8,
        learning_rate=1e-2,
    )
    trainer.train()
    logs = entries_with(trainer, "loss")
    for name in environments:
        curve = [entry[f"tasks/{name}/reward"] for entry in logs]
        first = sum(curve[:4]) / 4
        last = sum(curve[-4:]) / 4
        assert last > first + 0.2, curve
