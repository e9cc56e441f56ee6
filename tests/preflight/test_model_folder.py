"""A model that cannot be loaded is told by its name, with what lies beside it, before the hub is
asked again and again.
"""

from __future__ import annotations

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import huggingface_hub.constants as hub
import pytest
from transformers import AutoTokenizer

from grpo_ext.cli.main import main
from grpo_ext.common import prompt_tokens
from grpo_ext.common.model_files import model_files_fault
from grpo_ext.common.whole_model import folder_faults
from grpo_ext.preflight.model_folder import check_model
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.run.task_rows import load_tokenizer
from grpo_ext.tasks.open_dataset import open_dataset
from tests.support.hostile_models import growing_normalizer, many_layers, template


def found(name, elsewhere=False):
    findings = Findings(elsewhere=elsewhere)
    check_model(load_recipe(None, {"model_name_or_path": str(name)}).flat, findings)
    return findings


def told(name):
    findings = found(name)
    assert all(problem.key == "model_name_or_path" for problem in findings.problems)
    return " ".join(problem.message for problem in findings.problems)


@pytest.fixture
def warm(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(tiny_folder, tmp_path / "runs" / "warm")


def test_a_whole_folder_is_sound(warm):
    assert found("runs/warm").sound and found(warm).sound


def test_a_misspelt_folder_is_told_its_neighbor(warm):
    for name in ("runs/wram", str(warm.parent / "wram"), "./runs/wram"):
        assert name in told(name) and f"Did you mean '{name.replace('wram', 'warm')}'?" in told(
            name
        )
    assert "Did you mean" not in told("runs/elephant")


def test_a_folder_without_a_model_names_those_in_it(warm):
    message = told("runs")
    assert (
        "the folder runs is not a model" in message
        and "runs/warm" in message
        and "sentencepiece" not in message
    )


def test_weights_that_are_cut_off_or_missing_are_told(warm):
    weights = warm / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-8])
    assert "is incomplete" in told(warm)
    weights.write_bytes(b"")
    assert "is incomplete" in told(warm)
    weights.unlink()
    assert "has no weights" in told(warm)
    (warm / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-1-of-2.safetensors"}})
    )
    assert f"file {warm / 'model-1-of-2.safetensors'} is missing" in told(warm)
    weights.write_bytes(whole)
    (warm / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    assert "index.json is damaged" in told(warm)


class Hub(BaseHTTPRequestHandler):
    """One that has the model `there/is`, and counts how often it is asked for a model or dataset.

    huggingface_hub also asks once in each process for the names of agents.
    """

    asked = 0
    requests = 0  # of any kind

    def do_GET(self):
        type(self).requests += 1
        if self.path.startswith(("/api/models/", "/api/datasets/")):
            type(self).asked += 1
        is_there = self.path == "/api/models/there/is"
        body = b'{"id": "there/is", "siblings": []}' if is_there else b"{}"
        self.send_response(200 if is_there else 503 if "broken" in self.path else 404)
        if not is_there:
            self.send_header(
                "X-Error-Code", "RepoNotFound" if "broken" not in self.path else "Overloaded"
            )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def a_hub(tmp_path, monkeypatch):
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(hub, "ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
        (tmp_path / "hub" / "models--cached--model" / "snapshots").mkdir(parents=True)
        (tmp_path / "hub" / "datasets--openai--gsm8k").mkdir()
        Hub.asked = 0
        yield
        server.shutdown()


def test_the_hub_is_asked_once(a_hub):
    assert found("there/is").sound and Hub.asked == 1
    assert found("cached/model").sound and Hub.asked == 1
    assert "the hub has no visible model of that name. Did you mean 'cached/model'?" in told(
        "cached/modle"
    )
    assert Hub.asked == 2
    assert "asking the hub for it failed" in told("is/broken") and Hub.asked == 3


def test_an_adapter_of_the_hub_is_told_by_the_cache(a_hub, tmp_path):
    cached = tmp_path / "hub" / "models--cached--model"
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    (cached / "snapshots" / "abc").mkdir()
    (cached / "snapshots" / "abc" / "adapter_config.json").write_text("{}")
    expected = "cached/model is an adapter, not a whole model. Run `hf download cached/model"
    assert expected in told("cached/model")


def test_a_misspelt_data_set_is_told_at_once(a_hub, tmp_path, monkeypatch):
    with pytest.raises(
        FileNotFoundError,
        match=r"the hub has no visible dataset of that name. Did you mean 'openai/gsm8k'?",
    ):
        open_dataset("openai/gsm8")
    assert Hub.asked == 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(
        FileNotFoundError, match=r"no data file trian.jsonl. Did you mean 'train.jsonl'?"
    ):
        open_dataset("trian.jsonl")


def test_a_hub_that_cannot_be_reached_is_a_note_only_where_the_run_is_elsewhere():
    assert "asking the hub for it failed" in told("there/is")  # the tests are offline
    findings = found("there/is", elsewhere=True)
    assert findings.sound and "asking the hub for it failed" in findings.notes[0].message


def test_a_tokenizer_is_asked_for_once_if_the_hub_fails(a_hub):
    asked = Hub.requests
    with pytest.raises(ConnectionError, match="asking the hub for it failed"):
        load_tokenizer("is/broken", None, False)
    assert Hub.asked == 1 and Hub.requests <= asked + 2


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(many_layers, "at most 10,000 layers"), (growing_normalizer, "10,000 times as long")],
)
def test_what_would_fill_the_memory_is_found_before_it_is_loaded(
    tmp_path, tiny_folder, kind, reason
):
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    assert model_files_fault(folder) is None
    kind(folder)
    assert reason in model_files_fault(folder)
    assert reason in next(folder_faults(folder))


def test_the_base_of_an_adapter_is_checked_as_well(tmp_path, tiny_folder, capsys):
    base = tmp_path / "base"
    shutil.copytree(tiny_folder, base)
    many_layers(base)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    assert main(["merge", "--model", str(adapter)]) == 2
    assert "at most 10,000 layers" in capsys.readouterr().err


def test_a_template_without_an_end_is_given_up(tmp_path, tiny_folder, monkeypatch):
    monkeypatch.setattr(prompt_tokens, "TEMPLATE_SECONDS", 0.5)
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    template("endless_template")(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with pytest.raises(ValueError, match=r"chat template of .* took more than 1 seconds"):
        prompt_tokens.encode_prompts([[{"role": "user", "content": "?"}]], tokenizer)
