"""The notebook of a first run: it is kept without outputs, runs offline, and its page shows it."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM

from tests.support.forked import LIMIT
from tests.support.places import REPO

NOTEBOOK = REPO / "examples" / "first_run.ipynb"


def cells() -> list[dict]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def test_the_notebook_is_kept_without_outputs():
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) > 5
    for cell in code:
        assert cell["outputs"] == [] and cell["execution_count"] is None


def test_the_page_shows_every_cell_of_the_notebook():
    page = (REPO / "docs" / "first-run.md").read_text(encoding="utf-8")
    for cell in cells():
        for line in cell["source"]:
            assert line.strip("\n") in page, "run `make notebook`"


@pytest.mark.slow
def test_the_notebook_runs_offline_with_a_tiny_model(tmp_path):
    pytest.importorskip("nbclient")
    from tests.first_run_page import page, pictures, run_notebook

    offline = {
        "TINY": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    notebook = run_notebook(tmp_path, offline, seconds=int(LIMIT))
    text = page(notebook)
    scores = [1.0, pytest.approx(1 / 3), 0.0]
    shown = next(cell for cell in notebook.cells if "def word_count" in cell.source)
    assert json.loads(shown.outputs[-1].data["text/plain"]) == scores
    assert "first run: sound" in text
    assert "eval_word_count" in text and "±" in text
    assert "after 0 steps" in text and "after 24 steps" in text
    [picture] = pictures(notebook)
    assert picture.startswith(b"\x89PNG")
    folder = tmp_path / "runs" / "first-run" / "merged"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert not hasattr(model, "peft_config") and "'model.safetensors'" in text
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
