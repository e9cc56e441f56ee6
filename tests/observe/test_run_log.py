"""What a run writes down.

Every completion once, with what was said of it, also after a resume and from two ranks.
"""

from __future__ import annotations

import json
from datetime import date

import pytest
import yaml
from datasets import Dataset

from grpo_ext.observe.jsonl import read
from grpo_ext.rewards.guard import guard_rewards
from grpo_ext.train import main as train_recipe
from grpo_ext.trainer.samples import logged_columns
from tests.support.clocks import timeless
from tests.support.forked import on_ranks
from tests.support.short_countdown import SIGNAL, short_settings, words_of
from tests.support.tiny_run import tiny_arguments, tiny_trainer


def digits(completions, **kwargs):
    """Between 0 and 1; does not score every third completion."""
    texts = [c[0]["content"] for c in completions]
    return [
        None if i % 3 == 2 else sum(ch.isdigit() for ch in t) / (1 + len(t))
        for i, t in enumerate(texts)
    ]


def reads_wanted(completions, **kwargs):
    return [float(len(wanted)) for wanted in kwargs["wanted"]]


def names_long(completions, long, **kwargs):
    return [1.0] * len(completions)


def make_trainer(folder, out, **settings):
    args = tiny_arguments(
        out,
        **{
            "max_steps": 6,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-3,
            "save_strategy": "steps",
            "save_steps": 2,
            "eval_strategy": "steps",
            "eval_steps": 3,
            "eval_on_start": True,
            "eval_temperature": 0,
            "reward_weights": [1.0, 0.5],
            "seed": 3,
            **settings,
        },
    )
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Use {a}, 2 to make {a + 2}."}],
            "nums": [a, 2],
            "target": a + 2,
        }
        for a in range(1, 30)
    ]
    return tiny_trainer(
        folder,
        ["countdown", digits],
        args,
        Dataset.from_list(rows),
        eval_dataset={"small": Dataset.from_list(rows[:3]), "other": Dataset.from_list(rows[3:5])},
    )


@pytest.fixture(scope="module")
def run(tiny_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    make_trainer(tiny_folder, out).train()
    return out


@pytest.mark.parametrize(
    ("reward", "names"),
    [
        (reads_wanted, ["empty", "level", "tags", "wanted"]),
        (names_long, ["empty", "level", "long", "tags", "wanted"]),
    ],
)
def test_columns_of_a_reward_of_trl_are_logged_unless_long_or_not_json(reward, names):
    columns = {"wanted": "BOTTLE", "level": 2, "tags": ["a"], "empty": None}
    left_out = {"task": "sort", "day": date(2026, 1, 1), "image": "x.png", "prompt": "Sort."}
    row = {**columns, **left_out, "long": "x" * 2001}
    assert list(logged_columns(row, guard_rewards([reward]))) == names
    assert logged_columns(row, guard_rewards([reward]))["wanted"] == "BOTTLE"


def place_of(row):
    return row["step"], row["group"]


def test_every_completion_is_there_with_what_was_said_of_it(run):
    rows = list(read(run / "samples.jsonl"))
    train = [row for row in rows if row["mode"] == "train"]
    assert [row["step"] for row in train] == [step for step in range(1, 7) for _ in range(8)]
    assert [row["group"] for row in train] == [
        group for _ in range(6) for group in (0, 0, 0, 0, 1, 1, 1, 1)
    ]
    held_out = [(row["step"], row["dataset"]) for row in rows if row["mode"] == "eval"]
    assert held_out == [
        (step, name) for step in (0, 3, 6) for name in ("small",) * 3 + ("other",) * 2
    ]
    for row in train:
        said = row["rewards"]
        assert set(said) == {"countdown", "digits"}
        group = [other for other in train if place_of(other) == place_of(row)]
        known = [o["rewards"]["digits"] for o in group if o["rewards"]["digits"] is not None]
        missing = sum(known) / len(known)  # counts in training
        digits_or_mean = missing if said["digits"] is None else said["digits"]
        assert row["reward"] == pytest.approx(said["countdown"] + 0.5 * digits_or_mean, abs=1e-6)
        assert (
            row["length"] == 8
            if row["finish_reason"] == "length"
            else row["finish_reason"] == "stop"
        )
        assert row["columns"]["nums"][0] + 2 == row["columns"]["target"]
        assert str(row["columns"]["target"]) in row["prompt"][0]["content"]
    assert (
        sum(row["rewards"]["digits"] is None for row in train) == 6 * 2
    )  # of the 8 of a generation
    by_prompt = {}
    for row in rows:
        by_prompt.setdefault(row["prompt_id"], set()).add(json.dumps(row["prompt"]))
    assert all(len(prompts) == 1 for prompts in by_prompt.values())


def test_advantages_are_those_of_the_groups(run):
    rows = [row for row in read(run / "samples.jsonl") if row["mode"] == "train"]
    for start in range(0, len(rows), 4):
        group = rows[start : start + 4]
        assert sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-4)


def test_metrics_say_what_the_trainer_logged(run):
    logged = json.loads((run / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    written = [row for row in read(run / "metrics.jsonl") if "train_runtime" not in row]
    assert len(written) == len(logged) == 6 + 3 * 2
    for line, entry in zip(written, logged, strict=True):
        told = {key: None if value != value else value for key, value in entry.items()}
        assert {
            key: value for key, value in line.items() if key not in ("time", "not_finite")
        } == told
    means = [row["rewards/countdown/mean"] for row in written if "rewards/countdown/mean" in row]
    samples = [row for row in read(run / "samples.jsonl") if row["mode"] == "train"]
    for step, mean in enumerate(means, 1):
        scores = [row["rewards"]["countdown"] for row in samples if row["step"] == step]
        assert mean == pytest.approx(sum(scores) / len(scores))


def lines(path):
    """Without what is of the clock."""
    return [timeless(row) for row in read(path) if "train_loss" not in row]


def test_a_resumed_run_leaves_the_same_logs(tiny_folder, tmp_path, run):
    out = tmp_path / "resumed"
    make_trainer(tiny_folder, out, save_total_limit=None).train()
    with (out / "samples.jsonl").open("ab") as file:
        file.write(b'{"step": 7, "text": "half a li')
    trainer = make_trainer(tiny_folder, out, eval_on_start=False)
    trainer.train(resume_from_checkpoint=str(out / "checkpoint-2"))
    assert (out / "samples.jsonl").read_bytes() == (run / "samples.jsonl").read_bytes()
    assert lines(out / "metrics.jsonl") == lines(run / "metrics.jsonl")
    assert [start["step"] for start in json.loads((out / "run.json").read_text())["starts"]] == [
        0,
        2,
    ]


def test_a_new_run_in_an_old_folder_puts_the_old_logs_aside(tiny_folder, tmp_path):
    short = {"max_steps": 1, "eval_strategy": "no", "eval_on_start": False, "save_strategy": "no"}
    for _ in range(3):
        make_trainer(tiny_folder, tmp_path, **short).train()
    for folder in (tmp_path, tmp_path / "earlier-1", tmp_path / "earlier-2"):
        assert len(list(read(folder / "samples.jsonl"))) == 8
        assert json.loads((folder / "run.json").read_text())["versions"]["trl"]


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_share_is_of_whole_groups_and_changes_no_training(tiny_folder, tmp_path, run, share):
    trainer = make_trainer(tiny_folder, tmp_path, log_samples=share, save_strategy="no")
    trainer.train()
    everything = list(map(json.dumps, read(run / "samples.jsonl")))
    some = list(map(json.dumps, read(tmp_path / "samples.jsonl")))
    assert (
        set(some) <= set(everything)
        and (len(some) > 0) == (share > 0)
        and len(some) < len(everything)
    )
    train = [json.loads(row) for row in some if '"mode": "train"' in row]
    groups = [(row["step"], row["group"]) for row in train]
    assert all(groups.count(group) == 4 for group in groups)


def test_trl_s_own_evaluation_is_written_too(tiny_folder, tmp_path):
    settings = {
        "eval_temperature": None,
        "per_device_eval_batch_size": 4,
        "max_steps": 1,
        "eval_steps": 1,
        "save_strategy": "no",
    }
    make_trainer(tiny_folder, tmp_path, **settings).train()
    held_out = [row for row in read(tmp_path / "samples.jsonl") if row["mode"] == "eval"]
    assert {row["dataset"] for row in held_out} == {"small", "other"} and {
        row["step"] for row in held_out
    } == {0, 1}


@pytest.mark.parametrize("policy", ["sampling", "trl"])
def test_an_evaluation_in_batches_larger_than_a_generation_is_there_whole(
    tiny_folder, tmp_path, policy
):
    """By TRL, whose own table of completions holds no more than a generation."""
    settings = {
        "eval_temperature": None,
        "per_device_eval_batch_size": 8,
        "gradient_accumulation_steps": 1,
    }
    settings |= {"max_steps": 1, "eval_steps": 1, "eval_on_start": False, "log_completions": True}
    if policy == "trl":
        settings |= {"loss_normalization": "micro_batch", "logprob_policy": "trl"}
    trainer = make_trainer(tiny_folder, tmp_path, **settings)
    trainer.eval_dataset = trainer.train_dataset.select(range(6))
    trainer.train()
    rows = [row for row in read(tmp_path / "samples.jsonl") if row["mode"] == "eval"]
    assert [row["group"] for row in rows] == [group for group in range(6) for _ in range(4)]
    assert len({row["prompt_id"] for row in rows}) == 6
    assert [
        len({row["prompt_id"] for row in rows if row["group"] == group}) for group in range(6)
    ] == [1] * 6
    assert (
        len(trainer._logs["prompt"]) == trainer.args.generation_batch_size
    )  # TRL's table is as long as it was


@pytest.mark.slow
def test_two_ranks_write_one_log(tiny_folder, tmp_path):
    settings = short_settings(
        tiny_folder,
        tmp_path,
        max_steps=3,
        per_device_train_batch_size=4,
        max_completion_length=12,
        max_eval_samples=5,
        eval_strategy="steps",
        eval_steps=2,
        **SIGNAL,
    )
    on_ranks(2, train_recipe, words_of(settings))
    rows = list(read(tmp_path / "samples.jsonl"))
    train = [(row["step"], row["group"]) for row in rows if row["mode"] == "train"]
    assert train == [(step, group) for step in (1, 2, 3) for group in (0, 0, 0, 0, 1, 1, 1, 1)]
    groups = [
        {row["prompt_id"] for row in rows if (row["step"], row["group"]) == key}
        for key in set(train)
    ]
    assert [row["step"] for row in rows if row["mode"] == "eval"] == [0] * 5 + [2] * 5 + [3] * 5
    assert all(len(prompts) <= 2 for prompts in groups)
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert (
        recipe["max_steps"] == 3
        and recipe["task"] == "countdown"
        and recipe["output_dir"] == str(tmp_path)
    )


def test_tokens_have_their_advantage_age_and_log_prob(tiny_folder, tmp_path):
    trainer = make_trainer(
        tiny_folder, tmp_path, log_tokens=True, num_iterations=2, gradient_accumulation_steps=1
    )
    trainer.train()
    rows = [row for row in read(tmp_path / "samples.jsonl") if row["mode"] == "train"]
    assert rows
    for row in rows:
        tokens = row["tokens"]
        assert set(map(len, tokens.values())) == {row["length"]} and {*tokens} == {
            "text",
            "advantage",
            "age",
            "last_age",
            "logp",
        }
        assert tokens["advantage"] == pytest.approx([row["advantage"]] * row["length"]) and set(
            tokens["age"]
        ) <= {0}
        assert set(tokens["last_age"]) <= {1}  # each generation is trained on in two steps
        assert all(value <= 0 for value in tokens["logp"])
        said = "".join(tokens["text"]).replace("<|im_end|>", "")
        assert (
            said == row["text"] or "\N{REPLACEMENT CHARACTER}" in said + row["text"]
        )  # parts of a character
