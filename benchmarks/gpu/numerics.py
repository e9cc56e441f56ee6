"""Compare sampler and trainer in the usual number types, with a pretrained model if one is given.

Each row runs two training steps at a learning rate of 0, so the weights that sample are those that
score. Any difference in log-probs is therefore due to rounding: the sampler reads one token at a
time with a cache, and the trainer reads all tokens of a row at once.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from benchmarks.gpu.parts import Mode
from benchmarks.gpu.seeds import build
from benchmarks.gpu.sheet import Sheet
from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.tasks.gsm8k import GSM8K
from tests.support.logs import entries_with

GOAL = 5e-4  # nats a token
STEPS = 2


@dataclass(frozen=True)
class Setting:
    """What one row measures: the number type of the weights, and options of the trainer."""

    name: str
    dtype: str
    options: tuple[tuple[str, Any], ...] = ()
    bound: float | None = None  # of the KL divergence
    vllm: bool = False


SETTINGS = (
    Setting("float32", "float32", bound=1e-8),
    Setting("bfloat16", "bfloat16", bound=GOAL),
    Setting("bfloat16, padded rows", "bfloat16", (("layout", "padded"),)),
    Setting(
        "bfloat16, head in float32",
        "bfloat16",
        (("cast_lm_head_to_fp32", True),),
        bound=GOAL,
    ),
    Setting("float32 weights under autocast", "float32", (("bf16", True),)),
    Setting("float16", "float16", bound=GOAL),
    Setting("bfloat16, top_p 0.9, top_k 50", "bfloat16", (("top_p", 0.9), ("top_k", 50))),
)
WITH_VLLM = tuple(
    Setting(f"vLLM, {setting.name}", setting.dtype, setting.options, setting.bound, vllm=True)
    for setting in SETTINGS
    if setting.name in ("float32", "bfloat16", "bfloat16, top_p 0.9, top_k 50")
)


def run(mode: Mode, sheet: Sheet) -> None:
    """Measure each setting with the package's own sampler."""
    compare(SETTINGS, mode, sheet)


def run_vllm(mode: Mode, sheet: Sheet) -> None:
    """Measure those that vLLM has, in the trainer's process."""
    if not find_spec("vllm"):
        sheet.fact("vLLM", "not installed: left out")
        return
    compare(WITH_VLLM, mode, sheet)


def compare(settings: tuple[Setting, ...], mode: Mode, sheet: Sheet) -> None:
    """Predict and measure the settings that have no figure yet."""
    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(Path(folder) / "model", mode, sheet)
        for setting in settings:
            what = f"{setting.name}: KL of sampler and trainer"
            if sheet.has(what):
                continue
            # a token's log-prob moves by about 0.03 where logits near 10 have 8 bits; KL is half
            # its square
            expected = {"float32": 1e-11, "float16": 1e-5, "bfloat16": 5e-4}[setting.dtype]
            bound = None if mode.dry or setting.bound is None else ("<=", setting.bound)
            formula = "half the square of the rounding of a logit near 10"
            sheet.predict(what, expected, "nats a token", formula, bound)
            figures = difference(model, Path(folder) / "run", setting, mode)
            sheet.measured(what, figures["sampling/kl"], **figures)
            sheet.fact(
                f"{setting.name}: log-prob's mean difference, largest, share of ratios off by 10 %",
                ", ".join(
                    f"{figures[f'sampling/{name}']:.2g}"
                    for name in ("logp_difference/mean", "logp_difference/max", "ratio/share_far")
                ),
            )


def model_folder(folder: Path, mode: Mode, sheet: Sheet) -> Path:
    """Return a folder with the pretrained model that is given, else with one of random weights."""
    if mode.model is None:
        sheet.fact("model", "random weights, 0.5B" if not mode.dry else "random weights, tiny")
        return build(folder, "tiny" if mode.dry else "0.5B", mode.device)
    sheet.fact("model", mode.model.name)
    if mode.model.is_dir():
        return mode.model
    place = mode.model.parent
    name = mode.model.name
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(place, gguf_file=name)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=name, dtype=torch.float32
    )
    config = model.config
    del config.quantization_config  # else the weights count as quantised, and cannot be saved
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    plain.generation_config.eos_token_id = tokenizer.eos_token_id
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def difference(model: Path, out: Path, setting: Setting, mode: Mode) -> dict[str, float]:
    """Train at a learning rate of 0.

    Return the means of what the trainer logs of the sampler, the maxima of maxima.
    """
    rows = mode.size(128, 64, 8)
    options: dict[str, Any] = {
        "model_init_kwargs": {"dtype": setting.dtype},
        "bf16": False,
        "sampler_check_share": 1.0,
        "learning_rate": 0.0,
        "max_steps": STEPS,
        "per_device_train_batch_size": rows,
        "num_generations": 8,
        "max_completion_length": mode.size(256, 128, 8),
        "max_tokens_per_micro_batch": 8192,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "health_action": "none",
        "use_cpu": mode.dry,
    }
    if setting.vllm:
        options |= {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": 0.3,
            "vllm_max_model_length": 1024,
        }
    options |= dict(setting.options)
    if options.get("layout") == "padded":
        options |= {"max_tokens_per_micro_batch": None}
    questions = GSM8K(num_problems=64).dataset("train")
    args = GRPOExtConfig(output_dir=str(out), **options)
    trainer = GRPOExtTrainer(str(model), [characters], args, questions)
    trainer.train()
    logged = entries_with(trainer, "sampling/kl")
    names = [name for name in logged[0] if name.startswith("sampling/")]
    figures = {name: sum(entry[name] for entry in logged) / len(logged) for name in names}
    figures["sampling/logp_difference/max"] = max(
        entry["sampling/logp_difference/max"] for entry in logged
    )
    return figures


def characters(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
    """A reward that differs from completion to completion."""
    return [sum(map(ord, turns[-1]["content"])) % 17 / 16 for turns in completions]
