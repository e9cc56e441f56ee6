"""Secrets stay out of what a run saves and shows."""

import pytest

from grpo_ext.common.untrusted import without_secrets
from grpo_ext.recipe.difference import as_yaml, differences
from grpo_ext.recipe.load import load_recipe

NAMES = (
    "api_key API-KEY judge_api_key apikey aws_secret_access_key password db_password secret "
    "hub_token token"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_entries_with_the_name_of_a_secret_are_left_out(name):
    assert without_secrets({"kept": 1, "list": [{name: "hunter2", "x": 2}]}) == {
        "kept": 1,
        "list": [{"x": 2}],
    }


@pytest.mark.parametrize(
    "name", ["api_key_env", "max_tokens", "eos_token", "key", "tokens", "secretary", "keys"]
)
def test_other_entries_stay(name):
    assert without_secrets({name: "value"}) == {name: "value"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("http://user:hunter2@host/v1", "http://host/v1"),
        ("https://hunter2@host:8000", "https://host:8000"),
        ("postgresql+x://u:p@ss@host/db", "postgresql+x://host/db"),
        ("http://host/v1", "http://host/v1"),
        ("http://host/a@b", "http://host/a@b"),
        ("org/model@main", "org/model@main"),
        ("See http://user@host for more.", "See http://user@host for more."),
        ("http://user@host is a URL.", "http://user@host is a URL."),
    ],
)
def test_a_url_loses_user_and_password_and_prose_stays(text, kept):
    assert without_secrets({"a": [text]}) == {"a": [kept]}


def test_a_saved_recipe_has_no_secret_and_is_the_same_run(tmp_path):
    world = {"name": "guess", "turns": 5}
    settings = {
        "model_name_or_path": "m",
        "bf16": False,
        "environment": world,
        "hub_token": "hunter2",
        "model_init_kwargs": {"token": "hunter2", "proxies": {"http": "http://u:hunter2@host:1"}},
    }
    recipe = load_recipe(None, settings)
    text = as_yaml(recipe.flat)
    assert "hunter2" not in text and "http://host:1" in text
    (tmp_path / "recipe.yaml").write_text(text)
    assert differences(recipe, tmp_path) == {}
