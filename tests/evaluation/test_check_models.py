"""Before the first model of an evaluation is loaded, all are looked for."""

from __future__ import annotations

import argparse

import pytest

from grpo_ext.cli import eval as eval_command
from grpo_ext.evaluation.evaluate_recipe import check_models
from grpo_ext.evaluation.output_files import check_output


def test_a_later_model_that_is_not_there_is_refused(tiny_folder, tmp_path):
    """`tests/conftest.py` keeps the hub away."""
    check_models([str(tiny_folder)])
    with pytest.raises(ConnectionError, match="owner/typo is neither a folder nor in the cache"):
        check_models([str(tiny_folder), "owner/typo"])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        check_models([str(tiny_folder), str(tmp_path / "typo")])
    with pytest.raises(ValueError, match="it has no config"):
        check_models([str(tiny_folder), str(tmp_path)])


def test_a_home_folder_is_expanded_on_the_command_line_only(tiny_folder, monkeypatch):
    monkeypatch.setenv("HOME", str(tiny_folder.parent))
    parser = argparse.ArgumentParser()
    eval_command.add_parser(parser.add_subparsers())
    name = f"~/{tiny_folder.name}"
    assert parser.parse_args(["eval", "--model", name]).model == [str(tiny_folder)]
    with pytest.raises(FileNotFoundError):
        check_models([name])


def test_an_adapter_is_a_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    check_models([str(tmp_path)])


def test_both_files_must_be_writable(tmp_path):
    check_output(tmp_path / "new" / "eval.json")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"is a folder\. Pass the path of a file"):
        check_output(tmp_path)
    (tmp_path / "eval_completions.jsonl").mkdir()
    with pytest.raises(ValueError, match=r"which is a folder\. Choose another file"):
        check_output(tmp_path / "eval.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is not a writable folder"):
        check_output(tmp_path / "file" / "eval.json")
