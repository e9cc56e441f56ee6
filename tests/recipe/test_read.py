"""A recipe's file is untrusted: what it expands to is bounded, and whatever it holds is told with its name."""

from __future__ import annotations

import pytest

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
        ("a: " + "[" * 3000 + "]" * 3000, "not a recipe"),
        ("a: " + "[" * 200_000, "nested deeper than 100 levels"),
        ("a: 2026-99-99\n", "month must be in 1..12"),
        ("a: " + "9" * 5000, "not a recipe"),
        ("a: " + "x" * MOST_BYTES, "more than 1,048,576 bytes"),
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
