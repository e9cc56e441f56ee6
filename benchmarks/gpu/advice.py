"""Compare the settings that `grpo-ext bench` recommends with the best ones of a sweep.

The sweep covers layouts, tokens per micro-batch, and gradient checkpointing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.parts import Mode
from benchmarks.gpu.seeds import RECIPE, build
from benchmarks.gpu.shapes import make_model, needed
from benchmarks.gpu.sheet import Sheet
from benchmarks.gpu.training import step, work_of
from tests.support.step_bench import Bench
from tests.support.step_work import Case

KEYS = ("layout", "max_tokens_per_micro_batch", "gradient_checkpointing")
LEAST = 0.9  # of the best of the sweep
NOT_THERE = "not there"


def run(mode: Mode, sheet: Sheet) -> None:
    """Measure the settings of the sweep, and those that `grpo-ext bench` recommends."""
    shape = "tiny" if mode.dry else "1.5B"
    model = make_model(shape, mode.device)
    case = work_of(shape, mode, False, False)
    tokens = (
        (None, 512) if mode.dry else (8192, 32_768) if mode.quick else (4096, 8192, 16_384, 32_768)
    )
    layouts = ("padded", "chunks", "packed")
    for layout, most, checkpointing in product(layouts, tokens, (False, True)):
        most = None if layout == "padded" else most  # rectangles are not cut by tokens
        settings = {
            "layout": layout,
            "max_tokens_per_micro_batch": most,
            "gradient_checkpointing": checkpointing,
        }
        rate_of(settings, case, shape, model, mode, sheet)
    name, best = best_of(sheet)
    sheet.fact("the best of the sweep", name)
    if not sheet.has("advice") or sheet.data["rows"]["advice"]["measured"] == NOT_THERE:
        found = advised(mode, shape)
        sheet.fact("advice", NOT_THERE if found is None else said(found))
        if found is None:
            return
        sheet.data["advice"] = found
    what = "tokens a second as advised, as a share of the best"
    sheet.predict(
        what, 1.0, "", "the same work on the same machine", None if mode.dry else (">=", LEAST)
    )
    sheet.measured(what, rate_of(sheet.data["advice"], case, shape, model, mode, sheet) / best)


def said(settings: dict[str, Any]) -> str:
    """Describe settings in one line."""
    return ", ".join(f"{key} {settings.get(key)}" for key in KEYS)


def best_of(sheet: Sheet) -> tuple[str, float]:
    """Return the fastest settings of the sweep, and their tokens per second."""
    found = {k: row["measured"] for k, row in sheet.data["rows"].items() if k.startswith("layout ")}
    rates = {k: v for k, v in found.items() if isinstance(v, float)}
    return max(rates.items(), key=lambda item: item[1])


def rate_of(
    settings: dict[str, Any], case: Case, shape: str, model: Any, mode: Mode, sheet: Sheet
) -> float:
    """Return the completion tokens per second of the fastest of a few steps.

    The result is 0 if memory runs out.
    """
    what = said(settings)
    if sheet.has(what):
        return float(sheet.data["rows"][what]["measured"])
    given = tuple((key, settings[key]) for key in KEYS if settings.get(key) is not None)
    full = replace(
        case,
        micro_batch=case.rows if settings.get("max_tokens_per_micro_batch") else case.micro_batch,
    )
    bench = Bench(replace(full, settings=given), ("ours",), model=model)
    try:
        seconds = min(step(bench, "ours", mode, False)[0] for _ in range(1 + mode.size(2, 1, 1)))
    except torch.OutOfMemoryError:
        sheet.fact(what, 0.0, "tokens/s", why="not enough memory")
        return 0.0
    rate = needed(shape, case).completion_tokens / seconds
    sheet.fact(what, rate, "tokens/s")
    return rate


def advised(mode: Mode, shape: str) -> dict[str, Any] | None:
    """Return the settings that the command recommends; `None` if the command is missing."""
    known = subprocess.run(
        [sys.executable, "-m", "grpo_ext", "bench", "--help"], capture_output=True, text=True
    )
    if known.returncode:
        return None
    with tempfile.TemporaryDirectory() as folder:
        model = build(Path(folder) / "model", shape, mode.device)
        words = [
            "--config",
            RECIPE,
            "--json",
            "--model_name_or_path",
            str(model),
            "--dataset_name",
            "null",
        ]
        if mode.dry:
            words += [
                "--use_cpu",
                "true",
                "--bf16",
                "false",
                "--dtype",
                "float32",
                "--max_completion_length",
                "16",
            ]
        command = [sys.executable, "-m", "grpo_ext", "bench", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    print(done.stdout[-4000:], done.stderr[-2000:], flush=True)
    if done.returncode:
        raise RuntimeError(f"grpo-ext bench ended with {done.returncode}")
    found = settings_in(json.loads(done.stdout[done.stdout.index("{") :]))
    if found is None:
        raise RuntimeError(f"grpo-ext bench names none of {', '.join(KEYS)}")
    return found


def settings_in(found: Any) -> dict[str, Any] | None:
    """Return the first mapping in a JSON value that has settings of the training phase.

    The entry `settings` is searched first. Return `None` if there is no such mapping.
    """
    if not isinstance(found, dict):
        return None
    if len(found.keys() & set(KEYS)) > 1:
        return {key: found.get(key) for key in KEYS}
    inside = [found[key] for key in ("settings", "advice") if key in found] + list(found.values())
    return next((x for x in map(settings_in, inside) if x is not None), None)
