"""Colocate mode on a CPU.

The engine has the trainer's weights after every step, and log-probs of what it really samples.
"""

from __future__ import annotations

import pytest
import torch
from vllm.model_executor.layers.utils import (
    dispatch_cpu_unquantized_gemm as packed,
)  # before any engine is made

from grpo_ext.objective.presets import PRESETS
from grpo_ext.vllm import EngineFailure, plugin
from tests.support.engine_parts import (
    STEPS,
    WANDERING,
    check_truncated,
    differences,
    fifth,
    lora,
    make_trainer,
    without_sync,
)
from tests.support.logs import entries_with, metric_values

pytestmark = pytest.mark.vllm
CLOSE = 1e-5


def test_five_steps(engine_folder, tmp_path):
    trainer = make_trainer(engine_folder, tmp_path)
    assert trainer.vllm_generation.dtype() == "float32"
    assert max(differences(trainer)) <= CLOSE
    checked = metric_values(trainer, "sampling/sync_difference")
    assert len(checked) == STEPS and max(checked) <= CLOSE


def test_five_steps_of_an_adapter(engine_folder, tmp_path):
    trainer = make_trainer(engine_folder, tmp_path, lora())
    base = {
        name: p.detach().clone()
        for name, p in trainer.model.named_parameters()
        if not p.requires_grad
    }
    assert max(differences(trainer)) <= CLOSE
    weights = dict(trainer.model.named_parameters())
    assert base and all(torch.equal(weights[name], before) for name, before in base.items())
    adapter = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    assert adapter and all("lora_" in name for name in adapter)
    assert not any(module.merged for module in trainer.model.modules() if hasattr(module, "merged"))


def test_control_without_sync(engine_folder, tmp_path):
    found = differences(
        without_sync(make_trainer(engine_folder, tmp_path, vllm_sync_check_steps=0))
    )
    assert found[0] <= CLOSE  # the weights it was started with
    assert found[-1] > 0.1


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.7},
        {"top_k": 5, "temperature": 0.7},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
    ],
    ids=lambda sampling: "-".join(sampling),
)
def test_truncated_sampling_is_scored_as_sampled(engine_folder, tmp_path, sampling):
    """The log-probs of the kept tokens, renormalized, are those that vLLM drew with.

    Ratios of 1, and a signal.
    """
    trainer = make_trainer(engine_folder, tmp_path, **sampling)
    check_truncated(differences(trainer), CLOSE)
    ratios = [e["sampling/ratio/mean"] for e in trainer.state.log_history if "loss" in e]
    assert ratios == pytest.approx([1.0] * STEPS, abs=5e-3)


@pytest.mark.parametrize(
    "sampling", [{}, {"top_k": 20, "top_p": 0.9, "temperature": 0.7}], ids=["whole", "truncated"]
)
def test_episodes_are_scored_as_sampled(engine_folder, tmp_path, sampling):
    """Each turn is asked for by the tokens of all before it.

    What the environment said is no sample.
    """
    settings = {"environment": WANDERING, "max_completion_length": 60, **sampling}
    trainer = make_trainer(engine_folder, tmp_path, **settings)
    found = differences(trainer)
    assert max(found) <= CLOSE if not sampling else check_truncated(found, CLOSE) is None
    turns = [entry["episodes/turns"] for entry in trainer.state.log_history if "loss" in entry]
    assert 1 < min(turns) < 4


def test_trl_preset_syncs_and_is_checked(engine_folder, tmp_path):
    """TRL's own generation and loss: weights once a step, and log-probs of them."""
    given = {key: value for key, (value, _) in PRESETS["trl"].items()}
    trainer = make_trainer(engine_folder, tmp_path, **given)
    assert trainer.as_trl
    assert max(differences(trainer)) <= CLOSE
    assert trainer.vllm_generation.syncs == STEPS
    logged = entries_with(trainer, "loss")
    assert max(entry["sampling/sync_difference"] for entry in logged) <= CLOSE
    assert [e["sampling/importance_sampling_ratio/mean"] for e in logged] == pytest.approx(
        [1.0] * STEPS, abs=1e-3
    )


@pytest.mark.parametrize("sampling", [{}, {"top_k": 20}], ids=["whole", "truncated"])
def test_refilled_groups_are_scored_under_the_weights_that_sampled_them(
    engine_folder, tmp_path, sampling
):
    """Groups carried from one step to the next keep the log-probs of their own policy.

    New ones alone are checked.
    """
    options = {
        "group_filter": "refill",
        "max_staleness": 2,
        "per_device_train_batch_size": 16,
        "max_steps": 2 * STEPS,  # so that some have a surplus
        **sampling,
    }
    trainer = make_trainer(engine_folder, tmp_path, reward=fifth, **options)
    found = differences(trainer)
    assert max(found) <= CLOSE if not sampling else check_truncated(found, CLOSE) is None
    logged = entries_with(trainer, "loss")
    assert sum(entry["groups/reused"] for entry in logged) > 0
    assert (
        sum("sampling/sync_difference" in entry for entry in logged)
        == trainer.vllm_generation.syncs
    )
    assert max(entry.get("sampling/sync_difference", 0.0) for entry in logged) <= CLOSE


def test_stale_tied_head_ends_the_run(engine_folder, tmp_path, monkeypatch):
    """vLLM's own output head on a CPU, a packed copy of the first weights.

    The check finds it at the second sync.
    """
    whole = plugin.keep_weight

    def only_linear(layer, remove_weight):
        (whole if remove_weight else packed)(layer, remove_weight)

    monkeypatch.setattr(plugin, "keep_weight", only_linear)
    trainer = make_trainer(engine_folder, tmp_path)
    with pytest.raises(EngineFailure, match="is probably not using the weights that it was sent"):
        trainer.train()
    assert trainer.state.global_step == 1
    assert (tmp_path / "checkpoint-1" / "manifest.json").exists()
