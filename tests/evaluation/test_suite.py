"""`grpo-ext eval --suite` has the figures of the harness's own command line, for a loaded model."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.cli.main import main
from grpo_ext.evaluation import suite
from tests.support.local_suite import (
    NAMES,
    assert_as_theirs,
    run_command_line,
    write_tiny_tasks,
)

HAS_HARNESS = find_spec("lm_eval") is not None
harness = pytest.mark.skipif(not HAS_HARNESS, reason="lm_eval comes with `make suite`")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    """Problems of the tiny model's world: their answer, and the sign of a result."""
    return write_tiny_tasks(tmp_path_factory.mktemp("tasks"))


def save_models(tiny_folder) -> None:
    """Save the tiny model in the folder `before`, and one with other weights in `after`."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    for folder in ("before", "after"):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.data += 0.5 * torch.randn_like(parameter)


@harness
@pytest.mark.slow
def test_figures_and_errors_are_those_of_the_command_line(
    tiny_folder, tasks, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    save_models(tiny_folder)
    words = ["--suite", "local_sums, local_choices", "--suite_tasks", str(tasks)]
    words += ["--suite_limit", "12", "--batch_size", "4", "--output", "suite.json"]
    assert main(["eval", *words, "--model", "before", "--model", "after"]) == 0
    assert "after against before: paired difference" in capsys.readouterr().out
    saved = json.loads((tmp_path / "suite.json").read_text())
    figures = saved["models"]["after"]

    run_command_line("after", tasks, tmp_path / "theirs", limit=12, batch_size=4)
    assert_as_theirs(tmp_path / "suite.json", "after", tmp_path / "theirs")
    assert 0 < figures["local_choices"]["acc"] < 1
    for task in NAMES:
        assert figures[task]["n"] == 12
        for name, difference in saved["comparisons"][0][task].items():
            gain = figures[task][name] - saved["models"]["before"][task][name]
            assert difference["mean"] == pytest.approx(gain) and difference["rows"] == 12
    assert set(saved["comparisons"][0]["local_choices"]) == {"acc", "acc_norm"}


@harness
@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_leaves_the_figures_of_those_before_it(
    tiny_folder, tasks, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    save_models(tiny_folder)
    config = json.loads((tmp_path / "after" / "config.json").read_text())
    config["hidden_size"] *= 2
    (tmp_path / "after" / "config.json").write_text(json.dumps(config))
    words = ["--suite", "local_sums", "--suite_tasks", str(tasks), "--suite_limit", "2"]
    words += ["--model", "before", "--model", "after", "--output", "suite.json"]
    assert main(["eval", *words]) != 0
    saved = json.loads((tmp_path / "suite.json").read_text())
    assert list(saved["models"]) == ["before"] and saved["models"]["before"]["local_sums"]["n"] == 2
    assert saved["comparisons"] == []


@harness
@pytest.mark.parametrize("second", ["owner/typo", "empty"])
def test_every_model_is_looked_for_before_the_first_is_loaded(
    second, tiny_folder, tasks, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(suite, "harness_model", None)  # which loads a model
    words = ["--suite", "local_sums", "--suite_tasks", str(tasks), "--model", str(tiny_folder)]
    assert main(["eval", *words, "--model", second]) == 2
    assert second in capsys.readouterr().err


@harness
def test_an_unknown_task_is_refused_before_a_model_is_loaded(tasks, capsys):
    words = ["--suite", "local_sumz", "--suite_tasks", str(tasks), "--model", "no/model"]
    assert main(["eval", *words]) == 2
    told = capsys.readouterr().err
    assert "the harness has no task 'local_sumz'. Did you mean 'local_sums'?" in told


@harness
def test_a_task_without_its_rows_says_what_to_do(tasks, tmp_path, capsys):
    broken = (tasks / "local_sums.yaml").read_text().replace("sums_test.jsonl", "missing.jsonl")
    (tmp_path / "broken.yaml").write_text(broken.replace("local_sums", "broken"))
    words = ["--suite", "broken", "--suite_tasks", str(tmp_path), "--model", "no/model"]
    assert main(["eval", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("grpo-ext: the task broken cannot be loaded (")
    assert told.endswith("use tasks with local files, which --suite_tasks FOLDER adds.\n")


@harness
def test_a_folder_that_is_not_there_is_refused(tmp_path, capsys):
    words = ["--suite", "gsm8k", "--suite_tasks", str(tmp_path / "nowhere"), "--model", "no/model"]
    assert main(["eval", *words]) == 2
    assert "is not a folder. Pass a folder with tasks" in capsys.readouterr().err


@pytest.mark.skipif(HAS_HARNESS, reason="the harness is installed")
def test_without_the_harness_the_message_says_how_to_install_it(capsys):
    assert main(["eval", "--suite", "gsm8k", "--model", "no/model"]) == 2
    assert "run `pip install 'grpo_ext[suite]'`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "eval needs something to evaluate on"),
        (["--suite", "gsm8k"], "--suite needs a model"),
        (["--suite", " ,", "--model", "m"], "--suite names no task"),
        (["--suite", "gsm8k", "--model", "m", "--output", "."], "--output . is a folder"),
        (
            ["--config", "countdown/tiny", "--output", "/dev/null/x.json"],
            "/dev/null is not a writable folder",
        ),
        (["--suite", "gsm8k", "--model", "m", "--train_rows", "5"], "--train_rows has no effect"),
        (["--suite", "gsm8k", "--model", "m", "--num_samples", "4"], "--num_samples has no effect"),
        (["--config", "countdown/tiny", "--suite_limit", "5"], "--suite_limit has no effect"),
    ],
)
def test_options_of_the_other_kind_are_refused(words, message, capsys):
    assert main(["eval", *words]) == 2
    assert message in capsys.readouterr().err
