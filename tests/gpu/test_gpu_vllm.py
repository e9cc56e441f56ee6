"""Real vLLM beside the trainer: log-probs as sampled, both ways of one card, adapters, and an
engine that ignores an update.

On a CPU they run where vLLM's CPU build is installed, with one setting each.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.support.gpu_parts import noted
from tests.support.places import REPO

sys.path.append(str(REPO / "tests" / "engine"))
if not find_spec("vllm"):
    pytest.skip("vLLM is not installed", allow_module_level=True)

from grpo_ext import load_recipe
from grpo_ext.vllm import EngineFailure
from grpo_ext.vllm.server import server_of
from tests.support.engine_parts import free_port, lora, make_trainer
from tests.support.logs import entries_with

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
CUDA = torch.cuda.is_available()
# vLLM takes a share of the whole card for itself, and the tests' model is tiny
PLACE = {"use_cpu": False, "vllm_gpu_memory_utilization": 0.15} if CUDA else {}
SAMPLING = {"temperature": 0.7, "top_k": 50, "top_p": 0.9}
only_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


def figures_of(trainer) -> dict[str, float]:
    """Train; the sampler's log-probs against the scorer's, over all steps."""
    trainer.train()
    rows = entries_with(trainer, "loss")
    mean = [row["sampling/logp_difference/mean"] for row in rows]
    largest = [row["sampling/logp_difference/max"] for row in rows]
    ratio = [row["sampling/ratio/mean"] for row in rows]
    return {
        "steps": len(rows),
        "mean": sum(mean) / len(mean),
        "largest": max(largest),
        "ratio": sum(ratio) / len(ratio),
    }


@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=only_cuda), "float32"])
def test_log_probs_of_truncated_sampling(engine_folder, tmp_path, dtype):
    options = {**PLACE, **SAMPLING, "bf16": dtype == "bfloat16", "max_steps": 5}
    if dtype == "bfloat16":
        options["model_init_kwargs"] = {"dtype": "bfloat16"}
    found = figures_of(make_trainer(engine_folder, tmp_path, **options))
    noted(f"vLLM against the scorer, T 0.7, top_k 50, top_p 0.9, {dtype}", **found)
    assert found["steps"] == 5 and abs(found["ratio"] - 1) <= (
        0.05 if dtype == "bfloat16" else 0.01
    )
    assert found["mean"] <= (0.05 if dtype == "bfloat16" else 1e-3)


def test_an_engine_that_ignores_an_update_at_a_small_rate(engine_folder, tmp_path):
    """The sync is made and counted, and the tensors do not arrive.

    Log-probs differ by rounding alone.
    """
    trainer = make_trainer(
        engine_folder, tmp_path, **PLACE, learning_rate=1e-6, vllm_sync_check_limit=0.2
    )
    vllm = trainer.vllm_generation
    push = vllm._push
    vllm._push = lambda: push() if vllm.syncs == 0 else None
    with pytest.raises(EngineFailure, match="older weights than the trainer"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_a_skipped_sync_at_a_small_rate(engine_folder, tmp_path):
    trainer = make_trainer(
        engine_folder, tmp_path, **PLACE, learning_rate=1e-6, vllm_sync_check_limit=0.2
    )
    sync = trainer.vllm_generation.sync_weights
    trainer.vllm_generation.sync_weights = lambda: (
        sync() if trainer.state.global_step == 0 else None
    )
    with pytest.raises(EngineFailure, match="older weights than the trainer"):
        trainer.train()
    assert trainer.state.global_step == 1


@only_cuda
def test_ten_steps_with_an_engine_that_sleeps(engine_folder, tmp_path):
    options = {
        **PLACE,
        "vllm_enable_sleep_mode": True,
        "max_steps": 10,
        "bf16": True,
        "learning_rate": 1e-4,
    }
    found = figures_of(make_trainer(engine_folder, tmp_path, **options))
    noted("colocate with sleep mode, 10 steps", **found)
    assert found["steps"] == 10 and found["mean"] <= 0.05


@only_cuda
@pytest.mark.parametrize("how", ["adapter", "merged"])
def test_an_adapter(engine_folder, tmp_path, how):
    options = {
        **PLACE,
        "vllm_sync_adapter": how,
        "max_steps": 5,
        "bf16": True,
        "learning_rate": 1e-3,
    }
    found = figures_of(make_trainer(engine_folder, tmp_path, lora(), **options))
    noted(f"LoRA, vllm_sync_adapter: {how}", **found)
    assert found["steps"] == 5 and found["mean"] <= 0.05


def test_ten_steps_with_a_server_on_the_same_card(engine_folder, tmp_path):
    """An adapter goes to the server through the file system.

    NCCL refuses two processes of one card.
    """
    place = {
        "vllm_mode": "server",
        "vllm_sync_adapter": "adapter",
        "vllm_max_model_length": 256,
        **PLACE,
    }
    recipe = {
        "model_name_or_path": str(engine_folder),
        "output_dir": str(tmp_path / "server"),
        "use_vllm": True,
        **place,
    }
    recipe |= {
        "use_cpu": not CUDA,
        "bf16": False,
        "use_peft": True,
        "lora_r": 8,
        "max_completion_length": 16,
    }
    server = server_of(load_recipe(None, {**recipe, "vllm_server_port": free_port()}))
    with server.running(seconds=150, restarts=0):
        options = {
            **place,
            "vllm_server_base_url": server.url,
            "vllm_server_timeout": 30,
            "max_steps": 10,
        }
        found = figures_of(
            make_trainer(engine_folder, tmp_path, lora(), learning_rate=1e-3, **options)
        )
    noted("server mode on one card, an adapter, 10 steps", **found)
    assert found["steps"] == 10 and found["mean"] <= 0.05


def test_what_is_noted_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "GPU_FIGURES", str(tmp_path / "figures.jsonl"))
    noted("one", share=0.5)
    assert json.loads(Path(tmp_path / "figures.jsonl").read_text()) == {"what": "one", "share": 0.5}
