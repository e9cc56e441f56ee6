"""What the fast loop cannot decode is transformers' own, with the reason.

And nothing stays behind.
"""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    DynamicCache,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.generation import LogitsProcessor, StoppingCriteria

from grpo_ext.common.cache_input import CACHE_INPUT
from grpo_ext.decoding import checks
from grpo_ext.decoding.checks import NotSupported, check_call, check_model
from grpo_ext.seams import generate
from grpo_ext.seams.generate import check_fast_generation, fast_generation
from tests.support.tiny_models import batch_sizes, decoding, make_batch, make_model


class Own(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores


class Long(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), input_ids.size(1) > 15)


@pytest.fixture
def told(monkeypatch):
    messages = []
    monkeypatch.setattr(generate.logger, "warning_once", messages.append)
    return messages


@pytest.mark.parametrize(
    "config, arguments, reason",
    [
        ({"num_beams": 2, "do_sample": False}, {}, "beam"),
        ({"cache_implementation": "static"}, {}, "cache_implementation is set"),
        ({"use_cache": False}, {}, "use_cache is off"),
        ({"return_dict_in_generate": True}, {}, "return_dict_in_generate is set"),
        (
            {"repetition_penalty": 1.3},
            {},
            "RepetitionPenaltyLogitsProcessor may keep state per row",
        ),
        ({}, {"logits_processor": LogitsProcessorList([Own()])}, "Own may keep state per row"),
        (
            {},
            {"stopping_criteria": StoppingCriteriaList([Long()])},
            "Long may keep state per row",
        ),
        (
            {},
            {"prefix_allowed_tokens_fn": lambda row, ids: [20, 21]},
            "arguments of `generate` are not supported (prefix_allowed_tokens_fn)",
        ),
    ],
    ids=["beams", "static", "no_cache", "outputs", "penalty", "processor", "criterion", "prefix"],
)
def test_transformers_decodes_what_the_loop_does_not(told, config, arguments, reason):
    model = make_model()
    batch = make_batch([5, 3])
    config = decoding(12, **{"do_sample": True, "top_k": 0, **config})
    torch.manual_seed(3)
    theirs = model.generate(**batch, generation_config=config, **arguments)
    torch.manual_seed(3)
    with fast_generation(model):
        ours = model.generate(**batch, generation_config=config, **arguments)
    if config.return_dict_in_generate:
        theirs = theirs.sequences
        ours = ours.sequences
    assert torch.equal(theirs, ours)  # to the last draw
    assert len(told) == 1 and reason in told[0]


def test_what_the_loop_cannot_decode_is_known_before_the_model_runs(monkeypatch):
    """Also a cache whose name this package does not know, as after transformers 5.24."""
    model = make_model()
    model.generation_config.repetition_penalty = 1.3
    state = torch.get_rng_state()
    with batch_sizes(model) as passes:
        check_fast_generation(model, decoding(repetition_penalty=1.0))
        with pytest.raises(NotSupported, match=r"RepetitionPenalty.*generation_config\.json"):
            check_fast_generation(model, decoding())
        monkeypatch.setattr(checks, "INPUTS", checks.INPUTS - {CACHE_INPUT})
        with pytest.raises(NotSupported, match=rf"input {CACHE_INPUT}, .*constraints\.txt"):
            check_fast_generation(model, decoding(repetition_penalty=1.0))
    assert passes == []
    assert torch.equal(torch.get_rng_state(), state)


def test_models_that_need_their_own_way_are_named():
    small = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    phi = AutoConfig.for_model(
        "phi3", **small, num_attention_heads=2, num_key_value_heads=2, pad_token_id=0
    )
    with pytest.raises(NotSupported, match="Phi3ForCausalLM prepares its inputs with its own"):
        check_model(AutoModelForCausalLM.from_config(phi))
    t5 = AutoConfig.for_model(
        "t5", vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    )
    with pytest.raises(NotSupported, match="encoder"):
        check_model(AutoModelForSeq2SeqLM.from_config(t5))


def test_a_recurrent_cache_is_transformers_own(told):
    config = AutoConfig.for_model(
        "qwen3_next",
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        intermediate_size=16,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
        num_experts=2,
        num_experts_per_tok=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    batch = make_batch([5, 5])
    theirs = model.generate(**batch, generation_config=decoding(6))
    with fast_generation(model):
        assert torch.equal(theirs, model.generate(**batch, generation_config=decoding(6)))
    assert len(told) == 1 and "cannot remove rows" in told[0]


def test_the_reason_of_a_refused_cache_is_told():
    model = make_model()
    filled = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([[5, 6, 7]]), past_key_values=filled)
    with pytest.raises(NotSupported, match="already holds 3 tokens"):
        check_call([], [], {CACHE_INPUT: filled})
    with pytest.raises(NotSupported, match="passes no cache to the model"):
        check_call([], [], {CACHE_INPUT: None})


@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="torch was built for CUDA, which an offloaded cache would start",
)
def test_an_offloaded_cache_is_refused():
    cache = DynamicCache(config=make_model().config, offloading=True)
    with pytest.raises(NotSupported, match=r"the cache \(DynamicCache\) cannot remove rows"):
        check_call([], [], {CACHE_INPUT: cache})


def test_nothing_stays_behind_also_after_an_error():
    model = make_model()
    with pytest.raises(RuntimeError, match="mine"), fast_generation(model):
        assert "generate" in vars(model)
        raise RuntimeError("mine")
    assert "generate" not in vars(model)


def test_an_error_in_the_model_is_not_a_reason_to_try_again(told):
    model = make_model()
    model.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="Cannot sample a token"), fast_generation(model):
        model.generate(**make_batch([5, 3]), generation_config=decoding(do_sample=True))
    assert told == []


def test_adapters():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        make_model(), LoraConfig(r=2, init_lora_weights=False, target_modules=["q_proj", "v_proj"])
    )
    model.eval()
    batch = make_batch([5, 3, 9, 2])
    theirs = model.generate(**batch, generation_config=decoding())
    inner = model.get_base_model()
    with fast_generation(model), batch_sizes(inner) as passes:
        ours = model.generate(**batch, generation_config=decoding())
    assert torch.equal(theirs, ours)
    assert passes[0][0] == 4 and passes[-1][0] < 16
    with model.disable_adapter():
        assert not torch.equal(theirs, model.generate(**batch, generation_config=decoding()))
