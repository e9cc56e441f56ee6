"""What the safety tests on a GPU share.

Devices, models, attention, and a file for what they measure.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.gpu.attention import kernel_is_there, use_torch_flash
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.step.records import Scores

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
ON_CPU = pytest.param(
    "cpu", id="cpu"
)  # the emulation: the same code, with each kernel's plain twin
ON_GPU = pytest.param("cuda", id="cuda", marks=needs_cuda)
DEVICES = [ON_CPU, ON_GPU]
VOCAB = 300
PARAMS = SamplingParams(0.8)


def attend_by(model, attention: str):
    """Set a model's attention.

    "sdpa", "torch flash" (torch's kernels, emulated on a CPU) or the package's.
    """
    if attention == "torch flash":
        if next(model.parameters()).is_cuda and not kernel_is_there():
            pytest.skip("this torch has no varlen_attn with windows")
        return use_torch_flash(model)
    if attention == "flash_attention_2":
        import transformers.modeling_flash_attention_utils as flash

        if not (torch.cuda.is_available() and find_spec("flash_attn")):
            pytest.skip("the package flash_attn is not installed")
        flash._loaded_implementation = None  # torch's kernels may have taken the name
    model.set_attn_implementation(attention)
    return model


def model_of(architecture="qwen3", device="cpu", dtype=torch.bfloat16, hidden=64, **more):
    """An untrained model with heads of 32 numbers, two queries to a key, and scores as uneven as a
    trained model's.
    """
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
    }
    shape |= {
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": max(1, hidden // 64),
        "head_dim": 32,
    }
    shape |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "initializer_range": 0.08}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(architecture, **{**shape, **more}), dtype=torch.float32
    )
    return model.to(device=device, dtype=dtype).eval()


def run(model, head, labels, **inputs):
    """Call a model as the trainer's scorer does, without TRL's head.

    Log-probs in float32 of the labels.
    """
    logits = model(**inputs).logits[:, :-1].float() / PARAMS.temperature
    logps = logits.log_softmax(-1).gather(-1, labels[:, 1:].clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return Scores(logps * (labels[:, 1:] != -100))


def alone(model, ids, mask, width):
    """The log-probs (B, width) of each row's completion, row by row without padding."""
    found = torch.zeros(len(ids), width, device=ids.device)
    for i in range(len(ids)):
        row = ids[i][mask[i].bool()][None]
        count = int(mask[i, -width:].sum())
        logps = run(model, None, row, input_ids=row).logps[0]
        found[i, :count] = logps[len(logps) - count :]
    return found


def noted(what: str, **figures: float) -> None:
    """Append figures to the file that a benchmark names, one JSON object a line."""
    if path := os.environ.get("GPU_FIGURES"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"what": what, **figures}) + "\n")
