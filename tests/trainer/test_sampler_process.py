"""`sampler: process`: what reaches the process, what cannot, and a process that hangs."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.samplers.choose import check_device
from grpo_ext.samplers.process import ProcessSampler
from grpo_ext.samplers.shared_weights import packed, places_of, tensors_of, unpacked
from grpo_ext.samplers.sync_check import SyncCheck
from grpo_ext.seams.precision import Precision
from grpo_ext.trainer.manifest import what_is_wrong
from grpo_ext.trainer.run_output import describe
from grpo_ext.vllm import EngineFailure
from tests.support import overlap_run
from tests.support.forked import on_ranks
from tests.support.forked_samplers import use_forked_samplers
from tests.support.model_with_weights import model_of


class Own(nn.Module):
    """Two names of one weight, a buffer, and another number type."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
        self.second = nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.zeros(3, dtype=torch.float16))


def sampler_of(model):
    """One whose process is not started yet, and the model that its process would have."""
    params = SamplingParams()
    sampler = ProcessSampler(
        model, None, params, "cpu", limit=1.0, fast=True, precision=Precision()
    )
    return sampler, unpacked(sampler._start.model, sampler._places, sampler._shared)


def test_a_run_says_how_its_process_decodes(tiny_folder, tmp_path):
    trainer = overlap_run.make(tiny_folder, tmp_path)
    fast = "another process: each prompt processed once, finished rows removed from the batch"
    trainer.model.generation_config.repetition_penalty = 1.3  # the process has no such option
    assert describe(trainer)[0] == f"{fast} (fast_generate)"
    trainer.parts.sampler.config.use_cache = False
    assert "another process: transformers' generate, since use_cache is off" in describe(trainer)[0]


def test_tied_weights_buffers_and_number_types_are_those_of_the_trainer():
    model = Own()
    sampler, other = sampler_of(model)
    assert other.first.weight is other.second.weight and other.first.weight.dtype == torch.bfloat16
    sampler.load_weights(0)
    assert torch.equal(other.second.weight, model.first.weight) and torch.equal(
        other.count, model.count
    )
    model.count += 2
    with torch.no_grad():
        model.first.weight += 1
    sampler.load_weights(0)  # of the same step: somebody has loaded others
    assert torch.equal(other.second.weight, model.first.weight) and torch.equal(
        other.count, model.count
    )
    assert sampler.syncs == 2
    sampler.load_weights(0)
    assert sampler.syncs == 2


def test_a_frozen_base_is_sent_once_and_its_adapter_each_time(tiny_folder):
    model = get_peft_model(model_of(tiny_folder, {}), LoraConfig(r=2, target_modules="all-linear"))
    sampler, other = sampler_of(model)
    sampler.load_weights(0)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor += 1
    sampler.load_weights(1)
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs) == ("lora" in name), name


class Quantized(nn.Parameter):
    """More than its numbers."""


def test_what_cannot_be_copied_is_refused(tiny_folder, tmp_path):
    model = Own()
    model.second.weight = Quantized(torch.zeros(2, 2))
    with pytest.raises(
        ValueError, match=r"cannot copy this model.*a tensor of type Quantized cannot be copied"
    ):
        packed(model)
    model = Own()
    program = type("Mine", (nn.Module,), {"__module__": "__main__"})
    model.second = program()
    with pytest.raises(ValueError, match="Mine is defined in the main program, and must be moved"):
        packed(model)
    with pytest.raises(ValueError, match="sampler_device: cuda:70 does not exist"):
        overlap_run.make(tiny_folder, tmp_path, sampler_device="cuda:70")


def test_places_do_not_overlap():
    places, size = places_of(tensors_of(Own()))
    ends = [
        place.start + torch.Size(place.shape).numel() * place.dtype.itemsize for place in places
    ]
    assert (
        all(end <= place.start for end, place in zip(ends, places[1:], strict=False))
        and ends[-1] <= size
    )


@pytest.mark.usefixtures("sampler_forks")
@pytest.mark.slow
def test_a_model_that_computes_something_else_there_is_noticed(tiny_folder, tmp_path):
    """A hook that is defined within a function stays behind."""
    trainer = overlap_run.make(tiny_folder, tmp_path)
    trainer.model.model.norm.register_forward_hook(lambda module, given, states: states / 2)
    sampler = trainer.parts.sampler
    changed = ProcessSampler(
        trainer.model, sampler.config, sampler.params, "cpu", sampler.limit, True, Precision()
    )
    generations = trainer.parts.generations
    generations.sampler = generations.ahead.sampler = generations.sync_check.sampler = changed
    with pytest.raises(EngineFailure, match="The sampler's log-probs differ by"):
        trainer.train()


@pytest.mark.usefixtures("sampler_forks")
@pytest.mark.slow
def test_it_draws_at_the_temperature_that_is_scored(tiny_folder, tmp_path):
    trainer = overlap_run.make(
        tiny_folder, tmp_path, overlap="off", max_steps=1, generation_kwargs={"temperature": 0.5}
    )
    trainer.train()
    assert trainer.parts.scorer.params.temperature == 0.5
    assert trainer.state.log_history[0]["sampling/logp_difference/max"] < 1e-4


@pytest.mark.usefixtures("sampler_forks")
@pytest.mark.slow
def test_half_weights_widen_the_limit_of_the_sync_check():
    def limit(weights):
        trainer = SimpleNamespace(
            args=SimpleNamespace(vllm_sync_check_limit=None),
            accelerator=SimpleNamespace(mixed_precision="no"),
            model=nn.Linear(2, 2).to(weights),
        )
        sampler = SimpleNamespace(dtype=lambda: "float32")
        return SyncCheck._limit(SimpleNamespace(trainer=trainer, sampler=sampler))

    assert limit(torch.float32) == 1e-3
    assert limit(torch.bfloat16) == 0.2


@pytest.mark.parametrize("name", ["gpu1", "cuda:x", ""])
def test_a_device_that_torch_does_not_know_is_refused(name):
    with pytest.raises(ValueError, match=f"sampler_device: {name!r} is not a device"):
        check_device(name)


def test_a_process_that_hangs_is_replaced(tiny_folder, tmp_path, caplog):
    whole = overlap_run.make(tiny_folder, tmp_path / "whole")
    whole.train()
    trainer = overlap_run.make(tiny_folder, tmp_path)
    sampler = trainer.parts.sampler
    plain = sampler._send
    usual = sampler.limit
    sent = []

    def send():
        sent.append(1)
        if (
            len(sent) == 3
        ):  # of a generation under way: the second one is of the check of the weights
            os.kill(sampler._process.pid, signal.SIGSTOP)
        sampler.limit = 0.5 if len(sent) == 3 else usual
        plain()

    sampler._send = send
    trainer.train()
    assert caplog.text.count("A new process repeats") == 1
    for name, p in trainer.model.named_parameters():
        assert torch.equal(p, dict(whole.model.named_parameters())[name])


def fails_on_one_rank(folder, out):
    use_forked_samplers()
    trainer = overlap_run.make(folder, out)
    if trainer.args.process_index == 1:
        trainer.parts.sampler._start = replace(trainer.parts.sampler._start, model=b"")
    with pytest.raises(EngineFailure, match="failure: EOFError"):
        trainer.train()


@pytest.mark.usefixtures("sampler_forks")
@pytest.mark.slow
def test_what_fails_on_one_rank_ends_all(tiny_folder, tmp_path):
    on_ranks(2, fails_on_one_rank, tiny_folder, tmp_path)
    assert what_is_wrong(tmp_path / "checkpoint-0") is None
