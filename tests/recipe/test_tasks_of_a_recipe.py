"""Several tasks in one recipe: what their entries take, how their rows are mixed, and which rewards
score which rows.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
from datasets import Dataset, IterableDataset
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext import load_recipe
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.run.from_recipe import eval_rows, has_eval_rows, named_rewards_and_weights, train_rows
from grpo_ext.tasks.mix import mixed, mixed_streams

COUNTDOWN = {
    "num_problems": 30,
    "num_test_problems": 5,
    "min_numbers": 3,
    "max_numbers": 3,
    "max_number": 9,
}
STORIES = {"task": "gsm8k", "num_problems": 20, "num_test_problems": 7}
TWO = {"countdown": COUNTDOWN, "stories": STORIES}


def recipe(tasks, **more):
    return load_recipe(None, {"model_name_or_path": "m", "tasks": tasks, **more})


def problems(tasks, **more):
    with pytest.raises(RecipeError) as caught:
        recipe(tasks, **more)
    return [problem.message for problem in caught.value.problems]


def test_rows_have_their_task_and_the_columns_of_all():
    rows = train_rows(recipe(TWO))
    assert Counter(rows["task"]) == {"countdown": 30, "stories": 20}
    assert {"prompt", "nums", "target", "question", "solution"} <= set(rows.column_names)
    for row in rows:
        assert (row["nums"] is None) == (row["task"] == "stories") == (row["solution"] is not None)
    assert Counter(rows["task"][:10]) == {"countdown": 6, "stories": 4}  # in proportion everywhere
    held_out = eval_rows(recipe(TWO))
    assert Counter(held_out["task"]) == {"countdown": 5, "stories": 7}
    assert not set(map(str, rows["prompt"])) & set(map(str, held_out["prompt"]))


def test_shares_repeat_rows_and_leave_none_out():
    tasks = {"countdown": {**COUNTDOWN, "share": 1}, "stories": {**STORIES, "share": 3}}
    rows = train_rows(recipe(tasks))
    assert Counter(rows["task"]) == {"countdown": 30, "stories": 90}
    times = Counter(q for q in rows["question"] if q is not None)
    assert len(times) == 20 and set(times.values()) == {4, 5}
    assert Counter(eval_rows(recipe(tasks))["task"]) == {"countdown": 5, "stories": 7}
    few = train_rows(recipe(tasks, max_train_samples=8))
    assert Counter(few["task"]) == {"countdown": 2, "stories": 6}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0.1, 10)), min_size=1, max_size=4))
def test_any_mixture_has_its_shares_and_every_row(parts):
    sets = {f"t{i}": Dataset.from_dict({"n": list(range(n))}) for i, (n, _) in enumerate(parts)}
    shares = {f"t{i}": share for i, (_, share) in enumerate(parts)}
    rows = mixed(sets, shares)
    counts = Counter(rows["task"])
    total = sum(shares.values())
    for name, own in sets.items():
        assert {n for n, t in zip(rows["n"], rows["task"], strict=True) if t == name} == set(
            own["n"]
        )
        assert abs(counts[name] - len(rows) * shares[name] / total) <= len(sets)
    plain = mixed(sets)
    assert len(plain) == sum(map(len, sets.values()))


def test_a_stream_has_all_tasks_and_all_columns():
    rows = train_rows(recipe(TWO, dataset_streaming=True, max_steps=3))
    first = list(itertools.islice(rows, 40))
    counts = Counter(row["task"] for row in first)
    assert counts.keys() == TWO.keys() and min(counts.values()) > 8
    assert len(set(map(tuple, first))) == 1
    assert first == list(itertools.islice(rows, 40))  # the same again


def test_rewards_are_for_their_tasks():
    tasks = {
        "countdown": {
            **COUNTDOWN,
            "reward_funcs": ["countdown", {"name": "format", "weight": 0.25}],
        },
        "stories": {
            **STORIES,
            "reward_funcs": ["accuracy", {"name": "format", "weight": 0.25}, "tag_count"],
        },
    }
    rewards, weights = named_rewards_and_weights(recipe(tasks))
    assert {r.name: r.tasks for r in rewards} == {
        "countdown": ("countdown",),
        "format": ("countdown", "stories"),
        "accuracy": ("stories",),
        "tag_count": ("stories",),
    }
    assert weights == [1.0, 0.25, 1.0, 1.0]


def test_rewards_of_one_name_and_other_weights_are_labeled_by_task():
    rewards, weights = named_rewards_and_weights(recipe(TWO))  # the defaults of both tasks
    by_name = dict(zip((r.name for r in rewards), weights, strict=True))
    assert (by_name["countdown_format"], by_name["stories_format"]) == (1.0, 0.5)
    assert recipe(TWO, group_filter_metric="stories_format", group_filter="drop")
    assert "no reward 'format'" in problems(TWO, group_filter_metric="format")[0]


def test_all_faults_of_all_entries_are_named_at_once():
    found = problems(
        {
            "countdown": {"num_problem": 3, "max_target": "much"},
            "stories": {"task": "gsm9k"},
            "guess": {"share": 0},
        }
    )
    assert "tasks: countdown: unknown key 'num_problem'" in found[0] and "num_problems" in found[0]
    assert found[1].startswith("tasks: countdown: max_target must be a whole number")
    assert found[2].startswith("tasks: stories:") and "gsm9k" in found[2]
    assert found[3].startswith("tasks: guess: share must be greater than 0")


@pytest.mark.parametrize(
    "more, words",
    [
        ({"task": "countdown"}, "task cannot be set together with tasks. Set task in the"),
        ({"dataset_name": "x.jsonl"}, "dataset_name cannot be set together with tasks"),
        ({"reward_weights": [1.0]}, "Set a `weight` for each reward"),
        (
            {"num_problems": 3},
            "Set it in the entry of such a task in `tasks`.",
        ),
    ],
)
def test_keys_of_a_single_task_belong_into_an_entry(more, words):
    assert any(words in problem for problem in problems(TWO, **more))


def test_shares_are_for_all_tasks_or_for_none():
    assert (
        "share is set for some tasks only"
        in problems({**TWO, "stories": {**STORIES, "share": 1}})[0]
    )
    assert problems({})[0].startswith("tasks is empty")


def test_columns_of_two_types_are_refused_by_name(tmp_path):
    for name, answer in (("a", 1), ("b", "one")):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({"prompt": "p", "answer": answer}) + "\n"
        )
    entry = {"task": "prompts", "reward_funcs": ["format"]}
    tasks = {n: {**entry, "dataset_name": str(tmp_path / f"{n}.jsonl")} for n in ("a", "b")}
    two = recipe(tasks)
    with pytest.raises(
        ValueError, match="column 'answer' has different types in the tasks 'a' and"
    ):
        train_rows(two)
    assert not has_eval_rows(two) and has_eval_rows(recipe(TWO))


def test_check_tries_the_rewards_of_each_task_on_its_own_row(tiny_folder, tmp_path):
    values = {
        "model_name_or_path": str(tiny_folder),
        "tasks": TWO,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 16,
    }
    (tmp_path / "two.yaml").write_text(json.dumps(values))
    findings = check_recipe(tmp_path / "two.yaml")
    assert findings.sound, findings.problems
    tried = findings.figures["rewards_by_task"]
    assert set(tried["countdown"]["scores"]) == {"countdown", "countdown_format"}
    assert tried["stories"]["scores"]["accuracy"] == [0.0, 0.0, 1.0]


def test_a_task_without_rows_is_named():
    """Its share would otherwise be filled with rows of another task."""
    parts = {
        "empty": Dataset.from_dict({"prompt": []}),
        "full": Dataset.from_dict({"prompt": ["a", "b"]}),
    }
    shares = {"empty": 1.0, "full": 1.0}
    streams = {name: IterableDataset.from_generator(rows.__iter__) for name, rows in parts.items()}
    for mix in (lambda: mixed(parts, shares), lambda: mixed_streams(streams, shares, 1)):
        with pytest.raises(ValueError, match="tasks: the task empty has no rows"):
            mix()
