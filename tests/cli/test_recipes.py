"""Recipes that come with the package, by name."""

from __future__ import annotations

from importlib.metadata import version

import pytest

import grpo_ext
from grpo_ext.cli.main import main
from grpo_ext.recipe.folder import recipe_folder, recipe_names, recipe_path
from tests.support.places import REPO


def test_every_recipe_is_listed_with_what_it_is(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    files = sorted(
        path.relative_to(REPO / "recipes").with_suffix("").as_posix()
        for task in (
            *("countdown", "gsm8k", "guess", "instructions", "math", "poem", "reasoning_gym"),
            "several",
        )
        for path in (REPO / "recipes" / task).glob("*.yaml")
    )
    assert [line.split()[0] for line in lines] == files == recipe_names()
    assert all(len(line.split()) > 5 and "#" not in line for line in lines)


@pytest.mark.parametrize(
    "name", ["countdown/tiny", "countdown/tiny.yaml", "recipes/countdown/tiny.yaml"]
)
def test_a_recipe_is_found_by_name_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        recipe_path(name).read_bytes()
        == (REPO / "recipes" / "countdown" / "tiny.yaml").read_bytes()
    )


def test_a_file_goes_before_a_recipe_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "countdown").mkdir()
    (tmp_path / "countdown" / "tiny.yaml").write_text("seed: 1\n")
    assert recipe_path("countdown/tiny.yaml").read_text() == "seed: 1\n"
    assert recipe_path("countdown/tiny") == recipe_folder() / "countdown" / "tiny.yaml"


def test_a_mistyped_name_is_told_the_nearest():
    with pytest.raises(
        FileNotFoundError, match=r"no recipe at countdwn/tiny\. Did you mean 'countdown/tiny'\?"
    ):
        recipe_path("countdwn/tiny")


def test_a_recipe_is_printed_as_it_is(capsys):
    assert main(["recipes", "poem/tiny"]) == 0
    assert capsys.readouterr().out == (REPO / "recipes" / "poem" / "tiny.yaml").read_text(
        encoding="utf-8"
    )
    assert main(["recipes", "poem/tny"]) == 2
    assert "Did you mean 'poem/tiny'?" in capsys.readouterr().err


def test_versions_name_what_a_fault_may_lie_in(capsys):
    assert main(["--version"]) == 0
    found = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert [*found][:5] == ["grpo_ext", "python", "trl", "transformers", "torch"]
    assert found["grpo_ext"] == grpo_ext.__version__ and found["torch"] == version("torch")
