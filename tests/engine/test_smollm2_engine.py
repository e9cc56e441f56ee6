"""A pretrained model in vLLM on a CPU: the engine has the weights of every step of an adapter."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from tests.support.engine_parts import (
    check_truncated,
    differences,
    free_port,
    lora,
    make_trainer,
    running_server,
    without_sync,
)
from tests.support.forked import LIMIT
from tests.support.logs import metric_values

pytestmark = pytest.mark.vllm
# In float32 trainer and engine are each at most 3e-5 from the log-probs in float64: the logits, up
# to 43, are rounded to 4e-6, and so are 30 layers before them.
CLOSE = 1e-4
STEPS = 3
TEXT = "naïve 12.50 €\n二月<|im_end|>\n"
IDS = [3546, 46494, 216, 33, 34, 30, 37, 32, 24927, 198, 16736, 230, 14483, 226, 2, 198]
SETTINGS = {
    "max_steps": STEPS,
    "learning_rate": 1e-3,
    "max_completion_length": 8,
    "per_device_train_batch_size": 4,
}
TRUNCATED = {"top_k": 20, "temperature": 0.8}


def make(folder, out, **settings):
    return make_trainer(folder, out, lora(), **{**SETTINGS, **settings})


@pytest.fixture(scope="module")
def server(smollm2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with running_server(
        smollm2, folder, max_completion_length=SETTINGS["max_completion_length"]
    ) as server:
        yield server


@pytest.fixture(params=["colocate", "server"])
def engine(request):
    """The settings of an engine."""
    if request.param == "colocate":
        return {}
    return {
        "vllm_mode": "server",
        "vllm_server_base_url": request.getfixturevalue("server").url,
        "vllm_group_port": free_port(),
        "vllm_server_timeout": LIMIT,
    }


def test_the_tokenizer_is_that_of_other_versions_of_transformers(smollm2):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
    assert tokenizer(TEXT).input_ids == IDS
    assert tokenizer.decode(IDS) == TEXT


def test_the_log_probs_are_those_of_every_step(smollm2, tmp_path, engine):
    trainer = make(smollm2, tmp_path, **engine)
    assert trainer.vllm_generation.dtype() == "float32"
    assert max(differences(trainer)) <= CLOSE
    checked = metric_values(trainer, "sampling/sync_difference")
    assert len(checked) == STEPS and max(checked) <= CLOSE


def test_truncated_sampling_is_scored_as_sampled(smollm2, tmp_path, engine):
    check_truncated(differences(make(smollm2, tmp_path, **TRUNCATED, **engine)), CLOSE)


def test_without_sync_the_log_probs_differ(smollm2, tmp_path, engine):
    trainer = make(smollm2, tmp_path, vllm_sync_check_steps=0, **engine)
    trainer.vllm_generation.sync_weights()
    found = differences(without_sync(trainer))
    assert found[0] <= CLOSE
    assert min(found[1:]) > 0.1
