"""A recipe's file is untrusted.

What it expands to is bounded, and whatever it holds is told with its name.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext import load_recipe
from grpo_ext.common.yaml_text import YamlFault, load_yaml
from grpo_ext.recipe.folder import accelerate_settings
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.recipe.read import MOST_BYTES, read_yaml


def bomb(levels: int, width: int = 9) -> str:
    lines = [f"a0: &a0 [{', '.join('x' * width)}]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text, words",
    [
        (bomb(9), "aliases"),
        (bomb(2), "aliases"),
        ("a: &a [*a]\n", "aliases"),
        ("a: &a {b: *a}\n", "aliases"),
        (
            "a: " + "[" * 3000 + "]" * 3000,
            "not a recipe: the document is nested deeper than 100 levels",
        ),
        ("a: " + "[" * 200_000, "nested deeper than 100 levels"),
        ("a: 2026-99-99\n", "month must be in 1..12"),
        ("a: " + "9" * 5000, ":1: a: a value does not fit its YAML type .*quote the value"),
        (
            "a: 1" + ":59" * 80_000,
            "does not fit its YAML type .an integer of 240,001 digits.: quote the value",
        ),
        ("a: " + "x" * MOST_BYTES, "larger than 1,048,576 bytes"),
    ],
)
def test_what_a_file_may_hold_is_bounded(tmp_path, text, words):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=words) as error:
        read_yaml(path)
    assert str(path) in str(error.value)


def test_no_device_is_read_to_its_end():
    with pytest.raises(RecipeError, match="not a plain file"):
        read_yaml("/dev/zero")


@pytest.mark.parametrize(
    "value, words",
    [
        ("!!bool maybe", "a value does not fit its YAML type: quote the value to make it a string"),
        ("!!int x", "a value does not fit its YAML type"),
        ("!!int ''", "a value does not fit its YAML type: quote the value"),
        ("!!float x", "could not convert string to float"),
        ("!!timestamp today", "a value does not fit its YAML type: quote the value"),
        (
            "!secret x",
            "could not determine a constructor for the tag '!secret': use plain values",
        ),
        ("!!binary 'x'", "failed to decode base64 data"),
        ("{[a]: 1}", "found unhashable key"),
        ("{2026-01-01: 1}", "a key of a mapping is a date or bytes: quote the key"),
    ],
)
def test_each_value_that_does_not_fit_its_tag_is_reported_with_its_key_and_line(
    tmp_path, value, words
):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"beta: 0.1\nseed:\n  {value}\ntop_k: !!int y\n")
    with pytest.raises(RecipeError) as error:
        read_yaml(path)
    seed, top_k = error.value.problems
    assert (seed.key, seed.place) == ("seed", f"{path}:3") and words in seed.message
    assert (top_k.key, top_k.place) == ("top_k", f"{path}:4")


def test_a_file_without_permission_is_no_recipe(tmp_path, monkeypatch):
    path = tmp_path / "recipe.yaml"
    path.write_text("beta: 0.1\n")
    opened = os.open

    def denied(file, *flags, **more):
        if Path(os.fsdecode(file)) == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(file, *flags, **more)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(RecipeError, match="cannot be read as a recipe: Permission denied"):
        read_yaml(path)


@pytest.mark.parametrize("value", ["!!bool maybe", "!!int x", "!!timestamp x", "{a: !!int ''}"])
def test_a_word_that_does_not_fit_its_tag_is_reported(value):
    with pytest.raises(RecipeError, match="beta must be a number; got"):
        load_recipe(None, ["--model_name_or_path", "m", "--beta", value])


def test_an_accelerate_config_that_does_not_fit_its_tag_is_reported_with_its_line(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("mixed_precision: 'no'\nnum_processes: !!int x\n")
    with pytest.raises(ValueError, match=f"accelerate_config: {path}:2: a value does not fit"):
        accelerate_settings(str(path))


TAGS = ["", "!!bool ", "!!int ", "!!float ", "!!timestamp ", "!!binary ", "!!set ", "!!omap "]
TAGS += ["!!pairs ", "!!map ", "!!seq ", "!!str ", "!!null ", "!!merge ", "!!python/name:os ", "! "]
SCALARS = st.sampled_from(
    [
        "x",
        "''",
        "~",
        "1:90",
        "0x",
        "0b2",
        "0o9",
        "-",
        "+",
        "1e",
        ".",
        ".inf",
        "2026-13-45",
        "=",
        "<<",
    ]
) | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
        | st.lists(st.tuples(inner, inner), max_size=2).map(
            lambda pairs: "{" + ", ".join(f"? {key} : {value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=300)
@given(
    key=st.sampled_from(["a", "beta", "environment", "? x"]),
    tag=st.sampled_from(TAGS),
    value=VALUES,
)
def test_any_yaml_is_a_value_or_a_fault_with_its_line(key, tag, value):
    text = f"{key}: {tag}{value}"
    for content in (text, text.encode(errors="surrogatepass")):
        try:
            load_yaml(content)
        except YamlFault as fault:
            assert fault.line >= 1 and fault.reason and fault.remedy
