"""What many tests stand on.

A tiny real tokenizer and model, and folders of data that may or may not be there.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

from grpo_ext.common.devices import gpu_is_there
from tests.support.places import REPO
from tests.support.registry_state import registry_as_before

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
# No test depends on the speed of the machine.
hypothesis.settings.register_profile(
    "any_speed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any_speed")
# Limits of the package, after which it goes on without rows, rewards or workers: a slow machine
# must not reach them.
PATIENT = {
    "grpo_ext.common.hub": {"PATIENCE": 300.0},
    "grpo_ext.environments.tools": {"STATE_SECONDS": 300.0},
    "grpo_ext.environments.turn_reader": {"PARSE_SECONDS": 300.0},
    "grpo_ext.observe.report.columns": {"EXPLAIN_SECONDS": 300.0},
    "grpo_ext.preflight.first_rows": {"PATIENCE": 300.0},
    "grpo_ext.preflight.forecast": {"PATIENCE": 300.0},
    "grpo_ext.preflight.gold_answers": {"PATIENCE": 60.0, "BUDGET": 300.0},
    "grpo_ext.preflight.machine": {"SERVER_PATIENCE": 60.0},
    "grpo_ext.preflight.row_counts": {"PATIENCE": 300.0},
    "grpo_ext.preflight.try_environment": {"BUDGET": 300.0},
    "grpo_ext.preflight.try_rewards": {"PATIENCE": 60.0, "BUDGET": 300.0},
    "grpo_ext.rewards.worker_pool": {"START_LIMIT": 600.0},
}
# `TRAIN_ON_GPU=1`: trainers that a test puts on the CPU are put on the first GPU, as far as they
# are in this process.
if os.environ.get("TRAIN_ON_GPU"):
    from transformers import TrainingArguments

    _read_arguments = TrainingArguments.__post_init__

    def _on_gpu(self: TrainingArguments) -> None:
        self.use_cpu = False
        _read_arguments(self)

    TrainingArguments.__post_init__ = _on_gpu  # type: ignore[method-assign]
# vLLM's CPU build lives in an environment of its own, whose tests `make vllm` runs.
# (No folder here is named vllm: `import vllm` would find it.)
collect_ignore_glob = [] if find_spec("vllm") and not gpu_is_there() else ["engine/*"]


def pytest_sessionstart() -> None:
    """Let the garbage collector wait while the tests' modules are imported.

    It would go through them again and again.
    """
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have slow tests: no worker is left alone with one at the end."""
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what has been imported.

    Accelerate has it go through everything after each training.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def patient_package(monkeypatch):
    """A test of a limit sets its own."""
    for name, limits in PATIENT.items():
        module = sys.modules.get(name)
        for limit, seconds in limits.items() if module else ():
            monkeypatch.setattr(module, limit, seconds)


@pytest.fixture(autouse=True)
def rewards_stay_in_their_test():
    """A reward that a test's plugin registers is in no other test's catalogue."""
    with registry_as_before():
        yield


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an untrained model of 0.1 million parameters and its tokenizer."""
    from grpo_ext.tasks.countdown import Countdown
    from grpo_ext.tiny.demonstrations import countdown_demonstrations
    from grpo_ext.tiny.model import build_model
    from grpo_ext.tiny.tokenizer import build_tokenizer

    folder = tmp_path_factory.mktemp("tiny") / "model"
    task = Countdown(
        num_problems=200, min_numbers=3, max_numbers=3, max_number=9, operators="+-", max_target=30
    )
    rows = countdown_demonstrations(task, 200)
    tokenizer = build_tokenizer(
        [message["content"] for row in rows for part in row.values() for message in part]
    )
    tokenizer.save_pretrained(folder)
    build_model(
        tokenizer, hidden_size=64, intermediate_size=128, max_position_embeddings=2048
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sampler_server(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a server that forks sampler processes."""
    from tests.support.forked_samplers import start_server

    return start_server(tmp_path_factory.mktemp("forks"))


@pytest.fixture
def sampler_forks(sampler_server, monkeypatch):
    """Fork the sampler processes of this process, and of those that call `use_forked_samplers`."""
    from grpo_ext.samplers import process
    from tests.support.forked_samplers import ADDRESS, start_forked

    monkeypatch.setenv(ADDRESS, sampler_server)
    monkeypatch.setattr(process, "start_beside", start_forked)


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data beside the checkout; tests that need it are skipped without it."""
    folder = REPO.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder of real data is not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def engine_folder(tiny_folder, tmp_path_factory) -> Path:
    """The tiny model with attention heads of 32 numbers, the least that vLLM runs on a CPU."""
    from transformers import AutoTokenizer

    from grpo_ext.tiny.model import build_model

    folder = tmp_path_factory.mktemp("engine") / "model"
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.save_pretrained(folder)
    shape = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 512,
    }
    build_model(tokenizer, **shape).save_pretrained(folder)
    return folder
