"""An engine that is given the adapter alone.

Its log-probs are the trainer's after every step, and its base is as it was.
"""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from grpo_ext.recipe.vllm_options import LORA_RANKS
from grpo_ext.samplers.vllm_adapter import AdapterVLLM, check_adapter
from grpo_ext.vllm import EngineFailure
from tests.support.engine_parts import STEPS, differences, lora, make_trainer, without_sync
from tests.support.logs import metric_values

pytestmark = pytest.mark.vllm
CLOSE = 1e-5
ALONE = {"vllm_sync_adapter": "adapter"}


def base(trainer) -> dict[str, torch.Tensor]:
    """A copy of the weights of the engine's model, without its slots for adapters, which are no
    parameters.
    """
    model = trainer.vllm_generation.llm.llm_engine.model_executor.driver_worker.model_runner.model
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def frozen(trainer) -> dict[str, torch.Tensor]:
    """A copy of the trainer's own base, which merging an adapter and taking it out again would
    round.
    """
    return {
        name: p.detach().clone()
        for name, p in trainer.model.named_parameters()
        if not p.requires_grad
    }


def test_five_steps(engine_folder, tmp_path):
    trainer = make_trainer(engine_folder, tmp_path, lora(), **ALONE)
    engine = trainer.vllm_generation.llm.llm_engine
    assert engine.vllm_config.lora_config.max_lora_rank == 8
    before = base(trainer)
    own = frozen(trainer)
    assert sum(weight.numel() for weight in before.values()) > 90_000
    assert max(differences(trainer)) <= CLOSE
    checked = metric_values(trainer, "sampling/sync_difference")
    assert len(checked) == STEPS and max(checked) <= CLOSE
    assert trainer.vllm_generation.syncs == STEPS
    assert len(engine.list_loras()) == 1  # the last alone
    assert all(torch.equal(weight, before[name]) for name, weight in base(trainer).items())
    assert own and all(torch.equal(weight, own[name]) for name, weight in frozen(trainer).items())


def test_control_without_sync(engine_folder, tmp_path):
    trainer = make_trainer(engine_folder, tmp_path, lora(), vllm_sync_check_steps=0, **ALONE)
    trainer.vllm_generation.sync_weights()
    found = differences(without_sync(trainer))
    assert found[0] <= CLOSE
    assert found[-1] > 0.1


def test_an_engine_that_keeps_the_first_adapter_ends_the_run(engine_folder, tmp_path, monkeypatch):
    load = AdapterVLLM._load
    monkeypatch.setattr(
        AdapterVLLM, "_load", lambda self, folder: self.request or load(self, folder)
    )
    trainer = make_trainer(engine_folder, tmp_path, lora(), **ALONE)
    with pytest.raises(EngineFailure, match="is probably not using the weights that it was sent"):
        trainer.train()
    assert trainer.state.global_step == 1
    assert (tmp_path / "checkpoint-1" / "manifest.json").exists()


def test_ranks_are_those_of_vllm():
    from vllm.config.lora import MaxLoRARanks

    assert get_args(MaxLoRARanks) == LORA_RANKS


def off(trainer, prompt) -> tuple[float, list]:
    """How far the log-probs of four completions of a prompt are from those of a plain forward pass,
    at most; and these.
    """
    _, completions, logps, _ = trainer.vllm_generation.generate([prompt] * 4, None, 4)
    worst = 0.0
    for ids, given in zip(completions, logps, strict=True):
        with torch.no_grad():
            found = (
                trainer.model(torch.tensor([prompt + ids]))
                .logits[0, len(prompt) - 1 : -1]
                .log_softmax(-1)
            )
        found = found[torch.arange(len(ids)), ids]
        worst = max(worst, (found - torch.tensor(given)[:, 0]).abs().max().item())
    return worst, completions


def test_nothing_of_an_earlier_adapter_is_left(engine_folder, tmp_path):
    """Two rank-stabilised adapters one after the other, on a prompt that the prefix cache keeps.

    Rank 5 in room for 8.
    """
    from peft import LoraConfig

    config = LoraConfig(
        r=5, lora_alpha=7, use_rslora=True, target_modules=["q_proj", "up_proj", "down_proj"]
    )
    trainer = make_trainer(engine_folder, tmp_path, config, **ALONE)
    generation = trainer.vllm_generation
    model = trainer.model.eval()
    assert generation.llm.llm_engine.vllm_config.cache_config.enable_prefix_caching
    prompt = [5 + i % 20 for i in range(200)]  # more than a block of the cache
    adapter = [p for p in model.parameters() if p.requires_grad]
    for seed in (1, 2):
        torch.manual_seed(seed)
        for p in adapter:
            torch.nn.init.normal_(p, std=0.3)
        if seed == 2:
            assert off(trainer, prompt)[0] > 0.1  # not given yet
        generation.sync_weights()
        assert off(trainer, prompt)[0] <= CLOSE
        assert off(trainer, prompt)[0] <= CLOSE  # out of the cache
    assert generation.syncs == 2


def test_first_generation_after_a_resume_has_the_adapter(engine_folder, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2, **ALONE}
    make_trainer(engine_folder, tmp_path, lora(), max_steps=2, **saving).train()
    trainer = make_trainer(engine_folder, tmp_path, lora(), max_steps=3, **saving)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    last = next(entry for entry in reversed(trainer.state.log_history) if "loss" in entry)
    assert last["step"] == 3 and last["sampling/logp_difference/max"] <= CLOSE
    assert trainer.vllm_generation.syncs == 1
    trainer.vllm_generation.request = (
        None  # the base alone, to see that the adapter is worth something
    )
    assert off(trainer, [5, 6, 7, 8])[0] > 1e-2


@pytest.mark.parametrize(
    "changed, named",
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"r": 1024}, "not 1024"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "embeddings"),
    ],
)
def test_what_vllm_would_leave_out_is_refused(engine_folder, tmp_path, changed, named):
    config = lora()
    for name, value in changed.items():
        setattr(config, name, value)
    with pytest.raises(ValueError, match=f"{named}.*vllm_sync_adapter: merged"):
        make_trainer(engine_folder, tmp_path, config, **ALONE)


def test_a_quantised_base_is_refused(engine_folder):
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(engine_folder), lora())
    check_adapter(model)
    model.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    with pytest.raises(ValueError, match=r"quantize the base.*vllm_sync_adapter: merged"):
        check_adapter(model)


def test_a_model_without_an_adapter_is_refused(engine_folder, tmp_path):
    with pytest.raises(ValueError, match="Pass a peft_config"):
        make_trainer(engine_folder, tmp_path, **ALONE)
