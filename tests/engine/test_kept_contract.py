"""The names of vLLM by which the kept tokens are asked for and read, and why a CPU has none.

Each of them fails here if vLLM moves or renames it.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import fields

import pytest
import torch
from trl.generation.vllm_generation import extract_logprobs
from vllm import LLM, EngineArgs, SamplingParams
from vllm.config import ModelConfig
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.scale_out.token_in_token_out import api_router
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
from vllm.outputs import CompletionOutput, SamplingMask
from vllm.sampling_params import RequestOutputKind
from vllm.utils.argparse_utils import FlexibleArgumentParser

from grpo_ext import load_recipe
from grpo_ext.samplers.vllm_kept import kept_of_outputs
from grpo_ext.samplers.vllm_token_route import FINAL_ONLY, request_of, sampling_params
from grpo_ext.vllm import EngineFailure, kept_tokens
from grpo_ext.vllm.http import GENERATE
from grpo_ext.vllm.settings import server_command
from tests.support.vllm_answers import VOCABULARY, draw, outputs_of, recorded, route_body

pytestmark = pytest.mark.vllm
QWEN3 = {"top_k": 20, "top_p": 0.95, "beta": 0.04, "overlap": "one_step"}


def test_the_engine_takes_the_setting_and_returns_the_field():
    assert "return_sampling_mask" in inspect.signature(LLM.__init__).parameters
    assert "return_sampling_mask" in {one.name for one in fields(ModelConfig)}
    assert "sampling_mask" in {one.name for one in fields(CompletionOutput)}
    assert [one.name for one in fields(SamplingMask)] == ["token_ids"]
    assert RequestOutputKind.FINAL_ONLY.value == FINAL_ONLY


def test_the_server_takes_the_flags_of_a_recipe(monkeypatch):
    monkeypatch.setattr(kept_tokens, "installed_version", lambda: kept_tokens.ROUTE_VERSION)
    monkeypatch.delenv(kept_tokens.RUNNER, raising=False)
    recipe = {"model_name_or_path": "m", "use_vllm": True, "vllm_mode": "server", **QWEN3}
    words = server_command(load_recipe(None, recipe).flat, None, completions=64)
    assert {"--return-sampling-mask", "--enable-scale-out"} <= {*words}
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(words[3:])
    validate_parsed_serve_args(args)
    assert args.return_sampling_mask and args.enable_scale_out
    assert args.logprobs_mode == "processed_logprobs"


def test_the_route_and_its_request():
    assert GENERATE in {route.path for route in api_router.router.routes}
    params = sampling_params(4, {"top_k": 20, "top_p": 0.95, "min_p": 0.0, "max_tokens": 7})
    request = GenerateRequest(**request_of("m", [1, 2], None, params))
    asked = request.sampling_params
    assert isinstance(asked, SamplingParams) and (asked.n, asked.top_k) == (4, 20)
    assert (asked.max_tokens, asked.logprobs) == (7, 0)
    assert asked.output_kind is RequestOutputKind.FINAL_ONLY


def test_the_installed_version_writes_what_was_recorded():
    import vllm

    version = vllm.__version__.partition("+")[0]
    for output, expected in zip(outputs_of(draw()), recorded()[version], strict=True):
        body = json.loads(route_body(output))
        assert {**body, "created": 0} == expected


def test_outputs_of_an_engine_in_this_process():
    drawn = draw()
    outputs = outputs_of(drawn)
    kept_sets = kept_of_outputs(outputs, VOCABULARY)
    logprobs, _ = extract_logprobs(outputs)
    for row, kept, logps in zip(drawn, kept_sets, logprobs, strict=True):
        ids = [one.nonzero().flatten().tolist() for one in kept.mask()]
        assert ids == row.kept_ids
        assert [one for [one] in logps] == row.logps
    outputs[1].outputs[0].sampling_mask.token_ids.pop()
    with pytest.raises(EngineFailure, match="tokens for 6 positions, but the completion has 7"):
        kept_of_outputs(outputs, VOCABULARY)
    outputs[1].outputs[0].sampling_mask = None
    with pytest.raises(EngineFailure, match="kept tokens for 0 positions"):
        kept_of_outputs(outputs, VOCABULARY)


def test_a_cpu_has_no_model_runner_that_returns_them(engine_folder, monkeypatch):
    """Runner V2 needs Triton, which compiles for no CPU; runner V1 refuses the setting."""
    monkeypatch.delenv(kept_tokens.RUNNER, raising=False)
    options = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 64 << 20}
    args = EngineArgs(
        str(engine_folder), logprobs_mode="processed_logprobs", **options, return_sampling_mask=True
    )
    assert not torch.cuda.is_available()
    with pytest.raises(ValueError, match="requires Model Runner V2"):
        args.create_engine_config()
