"""The contract with TRL holds for the installed version, and says what moved where it does not."""

from __future__ import annotations

import pytest
import trl

from grpo_ext.seams import contract


@pytest.fixture
def fresh():
    contract.check_contract.cache_clear()
    yield contract.check_contract
    contract.check_contract.cache_clear()


def test_the_installed_trl_fits(fresh):
    fresh()


def test_a_renamed_method_is_named(fresh, monkeypatch):
    monkeypatch.delattr(trl.GRPOTrainer, "_calculate_rewards")
    with pytest.raises(RuntimeError, match="_calculate_rewards"):
        fresh()


def test_a_changed_parameter_is_named(fresh, monkeypatch):
    monkeypatch.setattr(trl.GRPOTrainer, "log", lambda self, metrics: None)
    with pytest.raises(
        RuntimeError, match=r"GRPOTrainer.log: expected .*'logs'.* found .*'metrics'"
    ):
        fresh()


def test_another_version_is_refused(fresh, monkeypatch):
    monkeypatch.setattr(trl, "__version__", "1.17.0")
    with pytest.raises(RuntimeError, match=r"TRL is 1\.17\.0"):
        fresh()


def test_another_way_of_scoring_is_named(fresh, monkeypatch):
    monkeypatch.setattr("trl.trainer.utils.add_fused_lm_head", lambda model: None)
    with pytest.raises(RuntimeError, match="add_fused_lm_head no longer has"):
        fresh()


def test_another_way_to_the_engine_is_named(fresh, monkeypatch):
    path = "trl.generation.vllm_generation.VLLMGeneration.generate"
    monkeypatch.setattr(path, lambda self, prompts, images, num_generations, profiler=None: ())
    with pytest.raises(
        RuntimeError, match=r"VLLMGeneration.generate no longer has `self\.llm\.generate"
    ):
        fresh()
