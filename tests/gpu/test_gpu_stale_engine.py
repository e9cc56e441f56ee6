"""An engine that is one update behind is noticed at a learning rate of 1e-6, where log-probs do not
show it.
"""

from __future__ import annotations

import pytest
import torch

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.samplers.sync_check import checksums
from grpo_ext.tasks.countdown import Countdown
from grpo_ext.vllm import EngineFailure
from tests.support.gpu_parts import DEVICES
from tests.support.logs import metric_values


def spread(completions, **_):
    return [sum(map(ord, c[-1]["content"])) % 17 / 16 for c in completions]


def trainer_of(tiny_folder, out, device, **options):
    """A trainer beside an engine of its own: another process, which has a copy of the weights."""
    given = {
        "learning_rate": 1e-6,
        "max_steps": 3,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
    }
    given |= {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "logging_steps": 1,
    }
    given |= {
        "sampler": "process",
        "report_to": "none",
        "save_strategy": "no",
        "health_action": "none",
        "disable_tqdm": True,
    }
    args = GRPOExtConfig(
        output_dir=str(out), use_cpu=device == "cpu", bf16=False, **{**given, **options}
    )
    rows = Countdown(
        num_problems=64, max_numbers=3, max_number=9, operators="+-", max_target=30
    ).dataset("train")
    return GRPOExtTrainer(str(tiny_folder), [spread], args, rows)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("overlap", ["off", "one_step"])
def test_a_skipped_sync_ends_the_run(tiny_folder, tmp_path, overlap, device):
    trainer = trainer_of(tiny_folder, tmp_path, device, overlap=overlap, vllm_sync_check_limit=0.2)
    sampler = trainer.parts.generations.sampler
    load = sampler.load_weights
    sampler.load_weights = lambda step: load(step) if step == 0 else None
    with pytest.raises(EngineFailure, match="older weights than the trainer"):
        trainer.train()
    assert trainer.state.global_step <= 2
    differences = metric_values(trainer, "sampling/sync_difference")
    assert max(differences, default=0.0) < 0.01  # log-probs alone show nothing


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
