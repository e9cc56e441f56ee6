"""Estimate the hours of the GSM8K seed experiment at its real size, from a few timed steps.

The experiment has 1,024 questions with 8 completions each. The recipe is `gsm8k/qwen2.5-1.5b`, with
random weights, the task's own stories as questions, and completions of 256 tokens: an untrained
model hardly ever ends a completion, and the answers of a trained one have at most 200 tokens. It is
timed with the recipe's 32 completions per step, and with 256.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from benchmarks.gpu.parts import Mode
from benchmarks.gpu.shapes import SHAPES, make_model
from benchmarks.gpu.sheet import Sheet
from grpo_ext.observe.read_run import read_run
from grpo_ext.tasks.gsm8k import GSM8K
from grpo_ext.tiny.tokenizer import build_tokenizer

RECIPE = "recipes/gsm8k/qwen2.5-1.5b.yaml"
QUESTIONS, COMPLETIONS, GOAL, PUBLISHED = (
    1024,
    8,
    10 / 60,
    2.0,
)  # of the whole run; the last two in hours
# an H100's, for the prediction: bytes and operations a second
BANDWIDTH = 3.35e12
RATE = 750e12


def run(mode: Mode, sheet: Sheet) -> None:
    """Time both settings, with vLLM in the trainer's process or, without vLLM, our own sampler."""
    vllm = bool(find_spec("vllm"))
    sheet.fact("sampler", "vLLM, colocate" if vllm else "the package's own: vLLM is not installed")
    with tempfile.TemporaryDirectory() as folder:
        model = build(Path(folder) / "model", "tiny" if mode.dry else "1.5B", mode.device)
        for rows in (32, 256):
            what = f"hours of the run, {rows} completions a step"
            if sheet.has(what) or (mode.dry and rows == 256):
                continue
            seconds, formula = predicted(rows)
            steps = QUESTIONS * COMPLETIONS // rows
            bound = ("<=", GOAL) if rows == 256 and vllm else None
            sheet.predict(what, seconds * steps / 3600, "h", f"{steps} steps x {formula}", bound)
            found = timed(model, Path(folder) / f"run-{rows}", rows, mode, vllm)
            sheet.measured(what, found["s"] * steps / 3600, published_hours=PUBLISHED, **found)
            for name, value in found.items():
                sheet.fact(f"{name}, {rows} completions a step", value, "s" if name == "s" else "")


def predicted(rows: int) -> tuple[float, str]:
    """Return the expected seconds of a step on an H100 with vLLM, and how they are calculated."""
    weights = 3.1e9
    parameters = 1.54e9
    written = rows * 256
    read = rows // COMPLETIONS * 150
    sampling = 256 * (3e-3 + weights / (0.7 * BANDWIDTH) + rows * 2 * parameters / (0.3 * RATE))
    training = (
        (written + read) * parameters * (6 + 2 + 2 + 2) / (0.25 * RATE)
    )  # recomputed; scored by reference and policy
    sync = 0.5
    words = (
        f"({sampling:.2f} s sampling 256 tokens + {training:.2f} s training at 25 % + {sync} s "
        f"for the weights)"
    )
    return sampling + training + sync, words


def build(folder: Path, shape: str, device: str) -> Path:
    """Write a model with random weights and a tokenizer that has all its tokens."""
    (_, vocab), texts = (
        SHAPES[shape],
        [row["question"] + row["answer"] for row in GSM8K(num_problems=300).generate("train")],
    )
    model = make_model(shape, device)
    tokenizer = padded_vocabulary(build_tokenizer(texts, 1500), vocab)
    model.config.pad_token_id, model.config.eos_token_id = (
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
    )
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = (
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def padded_vocabulary(tokenizer: PreTrainedTokenizerFast, size: int) -> PreTrainedTokenizerFast:
    """Add tokens that occur in no text to a tokenizer, up to `size` tokens, and return it.

    A model of this size then cannot sample an unknown token.
    """
    state: Any = json.loads(tokenizer.backend_tokenizer.to_str())
    known = tokenizer.get_vocab()  # with the added tokens, which would else be numbered anew
    state["model"]["vocab"] = {**known, **{f"filler{n}": n for n in range(len(known), size)}}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        pad_token=tokenizer.pad_token,
        eos_token=tokenizer.eos_token,
        padding_side="left",
        chat_template=tokenizer.chat_template,
    )


def timed(model: Path, out: Path, rows: int, mode: Mode, vllm: bool) -> dict[str, float]:
    """Train a few steps by the recipe, and return the median seconds of a step.

    The medians of its parts are included as far as they are logged.
    """
    steps = mode.size(20, 8, 3)
    settings: dict[str, Any] = {
        "model_name_or_path": model,
        "output_dir": out,
        "dataset_name": "null",
        "num_problems": QUESTIONS,
        "max_steps": steps,
        "max_completion_length": 256,
        "save_strategy": "no",
        "per_device_train_batch_size": rows // 4,
        "use_vllm": vllm,
        "health_action": "none",
        "disable_tqdm": True,
    }
    if vllm:
        settings |= {
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": 0.35,
            "vllm_max_model_length": 1024,
        }
    if mode.dry:
        settings |= {
            "use_cpu": True,
            "bf16": False,
            "dtype": "float32",
            "accelerate_config": "cpu",
            "max_completion_length": 16,
        }
        settings |= {"gradient_checkpointing": False, "num_problems": 64}
    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "grpo_ext", "train", "--config", RECIPE, *words]
    # Random weights earn nothing, and a run that learns nothing exits with 1: the log tells whether
    # it trained.
    exit_code = subprocess.run(command, env=os.environ).returncode
    logged = [row for row in read_run(out).metrics if "time" in row and "loss" in row]
    if len(logged) != steps:
        raise RuntimeError(
            f"the run logged {len(logged)} of {steps} steps and exited with {exit_code}"
        )
    gaps = [b["time"] - a["time"] for a, b in pairwise(logged)]
    found = {"s": statistics.median(gaps[2:] if len(gaps) > 4 else gaps)}
    for name in ("sampling/generation_time", "completions/mean_length"):
        if values := [row[name] for row in logged if name in row]:
            found[name] = statistics.median(values)
    shutil.rmtree(out, ignore_errors=True)
    return found
