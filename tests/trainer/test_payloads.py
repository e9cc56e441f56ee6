"""No file that a run loads can run code.

Each is replaced by one that writes a file where it is unpickled.
"""

from __future__ import annotations

import pickle
import shutil

import pytest
import torch
import yaml

from grpo_ext.recipe.difference import differences
from grpo_ext.trainer.manifest import write_manifest
from tests.support.resumed_run import make

FILES = (
    "config.json",
    "generation_config.json",
    "grpo_state_0.pt",
    "model.safetensors",
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
    "tokenizer.json",
    "tokenizer_config.json",
    "trainer_state.json",
    "training_args.bin",
)
MORE = ("pytorch_model.bin", "scaler.pt", "optimizer.bin", "adapter_model.bin", "rng_state_0.pth")


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


@pytest.fixture(scope="module")
def run(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    make(tiny_folder, folder, max_steps=2).train()
    return folder


def poison(path, marker, way):
    if way == "pickle":
        path.write_bytes(pickle.dumps(Payload(marker)))
    else:  # as torch saves, old and new
        torch.save({"payload": Payload(marker)}, path, _use_new_zipfile_serialization=way == "zip")


def test_every_file_of_a_checkpoint_is_tried(run):
    found = {path.name for path in (run / "checkpoint-1").iterdir()}
    assert found - {"manifest.json", "chat_template.jinja", "special_tokens_map.json"} == set(FILES)


def test_a_payload_runs_where_it_is_loaded_as_a_pickle(tmp_path):
    """So that these tests are of something."""
    for number, way in enumerate(("pickle", "zip", "old")):
        poison(tmp_path / "file", tmp_path / f"marker-{number}", way)
        with open(tmp_path / "file", "rb") as file:
            pickle.load(file) if way == "pickle" else torch.load(file, weights_only=False)
        assert (tmp_path / f"marker-{number}").exists()


@pytest.mark.parametrize("way", ["pickle", "zip", pytest.param("old", marks=pytest.mark.slow)])
def test_no_file_of_a_checkpoint_runs_anything(tiny_folder, tmp_path, run, way):
    marker = tmp_path / "marker"
    folder = tmp_path / "run" / "checkpoint-1"
    trainer = make(tiny_folder, tmp_path / "run", max_steps=2)
    torchs = [name for name in (*FILES, *MORE) if name.endswith((".pt", ".pth", ".bin"))]
    for name in (
        torchs if way == "zip" else (*FILES, *MORE) if way == "old" else {*FILES, *MORE} - {*torchs}
    ):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run / "checkpoint-1", folder)
        if name in ("pytorch_model.bin", "adapter_model.bin"):
            (folder / "model.safetensors").unlink()
        poison(folder / name, marker, way)
        write_manifest(folder)  # whoever wrote the payload can write this, too
        try:
            trainer.train(str(folder))
        except Exception as error:
            failed = error
        else:
            failed = None
        assert not marker.exists(), name
        assert failed or name in (
            *MORE,
            "training_args.bin",
            "tokenizer.json",
            "tokenizer_config.json",
            "config.json",
            "generation_config.json",
        ), name
        if name == "grpo_state_0.pt":
            assert (
                isinstance(failed, ValueError)
                and "cannot be loaded" in str(failed)
                and str(folder) in str(failed)
            )


@pytest.mark.parametrize("name", ["manifest.json", "metrics.jsonl", "samples.jsonl", "run.json"])
def test_no_log_runs_anything(tiny_folder, tmp_path, run, name):
    marker = tmp_path / "marker"
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    place = folder / "checkpoint-1" / name if name == "manifest.json" else folder / name
    place.write_bytes(pickle.dumps(Payload(marker)) + b"\n")
    try:
        make(tiny_folder, folder, max_steps=2).train(str(folder / "checkpoint-1"))
    except ValueError as error:
        assert name == "manifest.json" and name in str(error)
    else:
        assert name != "manifest.json"
    assert not marker.exists()


def test_no_recipe_runs_anything(tmp_path):
    from grpo_ext.recipe.load import load_recipe

    text = "!!python/object/apply:builtins.open ['{}', w]".format(tmp_path / "marker")
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ValueError):
        load_recipe(str(tmp_path / "recipe.yaml"), [])
    assert differences(load_recipe("recipes/countdown/tiny.yaml", []), tmp_path) == {}
    assert not (tmp_path / "marker").exists()
    yaml.unsafe_load(text)
    assert (tmp_path / "marker").exists()
