"""Rewards that are objects or classes with `__call__`, as ms-swift writes them."""

from __future__ import annotations

import pickle
import sys
from functools import partial

import pytest

from grpo_ext import register
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.rewards.guard import AsyncGuard, guard_rewards
from grpo_ext.rewards.registry import build, lookup
from grpo_ext.rewards.reward_specs import find, resolve_rewards

PLUGIN = '''
from grpo_ext import register


class ORM:
    """Base of rewards, as in ms-swift."""

    def __init__(self, args=None, **kwargs):
        self.args = args

    def __call__(self, **kwargs):
        raise NotImplementedError


class Letters(ORM):
    """The share of letters."""

    def __call__(self, completions, **kwargs):
        return [sum(map(str.isalpha, text)) / max(len(text), 1) for text in completions]


@register("marks")
class Marks(ORM):
    """1 where there is a mark."""

    def __call__(self, completions, *, mark: str = "!", **kwargs):
        return [float(mark in text) for text in completions]


class Limited:
    def __init__(self, limit):
        self.limit = limit

    def __call__(self, completions, **kwargs):
        return [float(len(text) <= self.limit) for text in completions]


class Plain(ORM):
    def __call__(self, completions, **kwargs):
        return [1.0 for _ in completions]


class Asking(ORM):
    async def __call__(self, completions, **kwargs):
        return [1.0 for _ in completions]


class Nothing:
    """No reward."""


short = Limited(3)
register("at_most_five")(Limited(5))
register("letters")(Letters)
'''
TEXTS = {"completions": ["abcd", "a!", "1"]}


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    path = tmp_path / "orms.py"
    path.write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    return path


def test_objects_and_classes_can_be_registered(plugin):
    rewards, _ = resolve_rewards(
        ["at_most_five", "letters", {"name": "marks", "mark": "1"}], plugins=[str(plugin)]
    )
    assert [reward(**TEXTS) for reward in rewards] == [[1, 1, 1], [1, 0.5, 0], [0, 0, 1]]
    assert lookup("letters").summary == "The share of letters."
    assert lookup("marks").options == {"mark": "!"}
    with pytest.raises(ValueError, match="mark = 3: it must be a valid string"):
        build("marks", mark=3)


def test_a_decorated_class_stays_a_class(plugin):
    class Upper:
        """The share of upper-case letters."""

        def __call__(self, completions):
            return [float(text.isupper()) for text in completions]

    assert register("upper_object")(Upper) is Upper
    assert build("upper_object")(completions=["A", "a"]) == [1, 0]
    reward = Upper()
    assert register("upper_object")(reward) is reward, "a cell that runs again"


def test_a_file_names_an_object_or_a_class(plugin):
    rewards, _ = resolve_rewards(["orms.py:Letters", "orms.py:short", "orms.py:Plain"])
    assert [reward(**TEXTS, prompts=["?"] * 3) for reward in rewards] == [
        [1, 0.5, 0],
        [0, 1, 1],
        [1, 1, 1],
    ]
    assert [reward.__name__ for reward in rewards] == ["letters", "Limited", "Plain"]
    assert find("orms.py:Marks", {"mark": "a"}).registration.name == "marks"


def test_an_async_object_is_awaited(plugin):
    [guard] = guard_rewards([find("orms.py:Asking", {})])
    assert isinstance(guard, AsyncGuard)
    with pytest.raises(TypeError, match="Asking is async and cannot be registered"):
        register("asking")(find("orms.py:Asking", {}))


@pytest.mark.parametrize(
    "name, words",
    [
        (
            "Limited",
            (
                "Limited is a class, and its constructor needs limit. Create an object, "
                "`reward = Limited(...)`, and name or register `reward` instead of"
            ),
        ),
        ("Nothing", "Nothing is a class without __call__, so it cannot be used as a reward"),
    ],
)
def test_a_class_that_cannot_be_called_says_what_to_write(plugin, name, words):
    recipe = {"model_name_or_path": "m", "reward_funcs": [f"orms.py:{name}"]}
    findings = check_recipe(None, {**recipe, "output_dir": "out"})
    [problem] = [p for p in findings.problems if p.key == "reward_funcs"]
    assert f"Reward 'orms.py:{name}': {words}" in problem.message
    with pytest.raises(TypeError, match="is a class"):
        register("wrong_class")(
            getattr(sys.modules[find("orms.py:short", {}).func.__module__], name)
        )


def test_the_name_of_an_object_is_taken_for_others(plugin):
    resolve_rewards(["letters"], plugins=[str(plugin)])
    with pytest.raises(
        ValueError,
        match=r"The reward name 'letters' is already taken by orms_.*Register .*mine under another",
    ):

        @register("letters")
        def mine(completions):
            return [0.0] * len(completions)


def test_a_partial_can_be_registered(plugin):
    def at_least(completions, least):
        """1 where there are enough letters."""
        return [float(len(text) >= least) for text in completions]

    register("three_or_more")(partial(at_least, least=3))
    assert build("three_or_more")(**TEXTS) == [1, 0, 0]


def test_a_registered_object_goes_to_a_worker(plugin):
    resolve_rewards(["letters"], plugins=[str(plugin)])
    assert pickle.loads(pickle.dumps(build("letters")))(**TEXTS) == [1, 0.5, 0]
