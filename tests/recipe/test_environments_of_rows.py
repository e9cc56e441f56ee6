"""Recipes with several environments, named by a column of the rows or in the entries of `tasks`."""

import pytest
from datasets import IterableDataset

from grpo_ext import load_recipe
from grpo_ext.recipe.difference import _shaping
from grpo_ext.recipe.episode_options import environments_of
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.run.environment_rows import with_environments
from grpo_ext.run.from_recipe import named_rewards_and_weights, train_rows
from tests.support.logs import write_json_rows

GUESS = {"turns": 5, "turn_tokens": 4}
TASKS = {
    "guess": {"num_problems": 8, "environment": {"name": "guess", **GUESS}},
    "check": {"task": "countdown", "num_problems": 8, "environment": "check"},
    "countdown": {"num_problems": 8},
}


def recipe(**values):
    usual = {
        "model_name_or_path": "nowhere",
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "loss_normalization": "step",
    }
    return load_recipe(None, {**usual, **values})


def test_entries_of_tasks_have_environments():
    loaded = recipe(tasks=TASKS)
    wanted = {"guess": {"name": "guess", **GUESS}, "check": "check"}
    assert environments_of(loaded.flat) == environments_of(loaded.training) == wanted
    rows = train_rows(loaded)
    named = {(row["task"], row["environment"]) for row in rows}
    assert named == {("guess", "guess"), ("check", "check"), ("countdown", None)}
    streamed = list(train_rows(loaded, streaming=True).take(24))
    assert {(row["task"], row["environment"]) for row in streamed} <= named
    rewards, _ = named_rewards_and_weights(loaded)
    assert {reward.name: reward.tasks for reward in rewards} == {
        "environment": ("guess",),
        "countdown": ("check", "countdown"),
        "format": ("check", "countdown"),
    }


def test_a_column_names_them_and_is_the_task(tmp_path):
    names = ["guess", None, "harder"]
    rows = []
    for number, name in enumerate(names * 2):
        prompt = [{"role": "user", "content": f"Play {number}."}]
        rows.append({"prompt": prompt, "environment": name})
    write_json_rows(tmp_path / "rows.jsonl", rows)
    loaded = recipe(
        task="prompts",
        dataset_name=str(tmp_path / "rows.jsonl"),
        environments={"guess": GUESS, "harder": {"name": "guess", "high": 99}},
        reward_funcs=[{"name": "environment", "tasks": ["guess", "harder"]}],
    )
    assert environments_of(loaded.training)["guess"] == {"name": "guess", **GUESS}
    wanted = [(name, name or "single_turn") for name in names * 2]
    for streaming in (False, True):
        found = train_rows(loaded, streaming=streaming)
        assert [(row["environment"], row["task"]) for row in found] == wanted


@pytest.mark.parametrize(
    "values, words",
    [
        (
            {"environments": {"gues": None}},
            "environments: gues: unknown environment 'gues'. Did you mean 'guess'?",
        ),
        (
            {"environments": {"easy": {"name": "guess", "hihg": 3}}},
            "environments: easy: environment 'guess': unknown option 'hihg'. Did you mean 'high'?",
        ),
        ({"environments": {}}, "environments is empty"),
        ({"environments": {"single_turn": "guess"}}, "cannot be the name of an environment"),
        (
            {"environments": {"guess": None}, "environment": "guess"},
            "`environment` and `environments` both set environments",
        ),
        (
            {"environments": {"guess": None}, "tasks": TASKS},
            "`environments` and `tasks` both set environments",
        ),
        (
            {"tasks": {"guess": {"environment": {"name": "guess", "turn": 4}}}},
            "tasks: guess: environment 'guess': unknown option 'turn'. Did you mean 'turns'?",
        ),
        (
            {"tasks": {"guess": {**TASKS["guess"], "max_prompt_tokens": 9}}},
            "tasks: guess: max_prompt_tokens cannot be combined with environment",
        ),
        (
            {"environments": {"guess": {"credit": "turn"}}, "group_filter": "drop"},
            "`credit: turn` needs `group_filter: 'off'`",
        ),
        ({"environments": {"guess": None}, "curriculum": "adaptive"}, "curriculum: adaptive"),
        ({"environments": {"guess": None}, "overlap": "one_step"}, "does not support environment"),
        (
            {"environments": {"guess": None}, "loss_normalization": "micro_batch"},
            "needs `loss_normalization: step`",
        ),
        (
            {"tasks": TASKS, "loss_normalization": "micro_batch"},
            "if an entry has an `environment`, the recipe must set `loss_normalization: step`",
        ),
        ({"enviroments": {"guess": None}}, "Did you mean 'environments'?"),
    ],
)
def test_what_is_wrong_is_named(values, words):
    with pytest.raises(RecipeError) as told:
        recipe(**values)
    assert words in str(told.value)


def test_tasks_without_an_environment_may_limit_their_prompts():
    entry = {"num_problems": 8, "max_prompt_tokens": 99}
    assert recipe(tasks={**TASKS, "countdown": entry}).tasks["countdown"].options.max_prompt_tokens


def test_limits_that_do_not_change_what_is_learned_may_change():
    before = {"guess": {"turns": 5, "step_timeout": 1}, "check": None}
    after = {"guess": {"turns": 5, "max_failure_rate": 0.1}, "check": None}
    assert _shaping("environments", before) == _shaping("environments", after)
    entries = [{"a": {"environment": given["guess"], "share": 1}} for given in (before, after)]
    assert _shaping("tasks", entries[0]) == _shaping("tasks", entries[1])
    assert _shaping("environments", {"guess": {"turns": 4}}) != _shaping("environments", before)


def test_a_stream_without_the_column_is_refused():
    """Its columns are unknown until its first row is read."""
    loaded = recipe(
        environments={"guess": GUESS},
        reward_funcs=[{"name": "environment", "tasks": ["guess"]}],
    )
    stream = IterableDataset.from_generator(lambda: iter([{"prompt": "Play."}]))
    with pytest.raises(ValueError, match="the rows have no column `environment`"):
        next(iter(with_environments(loaded, stream)))


@pytest.mark.parametrize(
    ("columns", "task"), [({"task": "mine"}, "mine"), ({}, "guess")], ids=["present", "absent"]
)
def test_a_stream_keeps_its_own_tasks(columns, task):
    loaded = recipe(
        environments={"guess": GUESS},
        reward_funcs=[{"name": "environment", "tasks": ["guess"]}],
    )
    row = {"prompt": "Play.", "environment": "guess", **columns}
    stream = IterableDataset.from_generator(lambda: iter([row]))
    assert stream.column_names is None
    [found] = with_environments(loaded, stream)
    assert found["task"] == task
