"""An engine that is one update behind is noticed at a learning rate of 1e-6, where log-probs do not
show it, and one of which a tensor is behind by its log-probs.
"""

from __future__ import annotations

import pytest
import torch

from grpo_ext.samplers.sync_check import checksums
from grpo_ext.vllm import EngineFailure
from tests.support.gpu_parts import DEVICES
from tests.support.logs import metric_values
from tests.support.stale_engine import keep_first_tensor, send_only_first_weights, trainer_of


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("overlap", ["off", "one_step"])
def test_a_skipped_sync_ends_the_run(tiny_folder, tmp_path, overlap, device):
    trainer = trainer_of(tiny_folder, tmp_path, device, overlap=overlap, vllm_sync_check_limit=0.2)
    send_only_first_weights(trainer)
    with pytest.raises(EngineFailure, match="older weights than the trainer"):
        trainer.train()
    assert trainer.state.global_step <= 2
    differences = metric_values(trainer, "sampling/sync_difference")
    assert max(differences, default=0.0) < 0.01  # log-probs alone show nothing


@pytest.mark.slow
def test_a_tensor_that_is_not_updated_ends_the_run(tiny_folder, tmp_path):
    trainer = trainer_of(tiny_folder, tmp_path, learning_rate=1e-2)
    keep_first_tensor(trainer)
    with pytest.raises(EngineFailure, match="The sampler's log-probs differ by"):
        trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_run_that_syncs_goes_on(tiny_folder, tmp_path, device):
    trainer = trainer_of(tiny_folder, tmp_path, device)
    trainer.train()
    assert trainer.state.global_step == 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_least_update_changes_the_checksum(dtype, device):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64, device=device, dtype=dtype)
    model.bias.requires_grad_(False)
    before = checksums(model)
    assert len(before) == 1 and checksums(model) == before
    with torch.no_grad():
        model.bias += 1  # frozen: an engine has it from the start
        assert checksums(model) == before
        model.weight[3, 5] = torch.nextafter(model.weight[3, 5], model.weight[3, 5] + 1)
    assert checksums(model) != before
