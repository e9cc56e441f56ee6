"""Truncated sampling with vLLM: with the kept tokens that it returns, or that the trainer finds.

Each case runs two training steps at a learning rate of 0, with Qwen3's own sampling settings. vLLM
returns kept tokens only with model runner V2, so runner V1 shows what a run without them gets.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.numerics import Setting, difference, model_folder
from benchmarks.gpu.parts import Mode
from benchmarks.gpu.sheet import Sheet
from grpo_ext.vllm.kept_tokens import RUNNER

QWEN3 = (("temperature", 0.6), ("top_p", 0.95), ("top_k", 20), ("beta", 0.04))
WAYS = {"kept tokens from vLLM": "1", "kept tokens found by the trainer": "0"}
# a token at the edge of a set is off by its mass, at most 1 - top_p
EXPECTED = {"kept tokens from vLLM": 1e-4, "kept tokens found by the trainer": 0.05}


def run(mode: Mode, sheet: Sheet) -> None:
    """Measure both ways in float32 and bfloat16; on a CPU both are the trainer's."""
    if not find_spec("vllm"):
        sheet.fact("vLLM", "not installed: left out")
        return
    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(Path(folder) / "model", mode, sheet)
        for dtype in ("float32",) if mode.dry else ("float32", "bfloat16"):
            for way, runner in WAYS.items():
                what = f"{way}, {dtype}: largest difference of a log-prob"
                if sheet.has(what):
                    continue
                in_float32 = dtype == "float32"
                is_bound = in_float32 and not mode.dry and runner == "1"
                sheet.predict(
                    what,
                    EXPECTED[way] if in_float32 else 0.2,
                    "nats",
                    "rounding, and the mass of a token at the edge of a set",
                    ("<=", 1e-3) if is_bound else None,
                )
                with model_runner(None if mode.dry else runner):
                    setting = Setting(way, dtype, QWEN3, vllm=True)
                    figures = difference(model, Path(folder) / "run", setting, mode)
                edges = figures.get("sampling/edge_tokens")
                if not mode.dry and runner == "1" and edges is None:
                    raise AssertionError("vLLM returned no kept tokens")
                sheet.measured(what, figures["sampling/logp_difference/max"], **figures)
                sheet.fact(
                    f"{way}, {dtype}: share of edge tokens, seconds of a generation",
                    f"{edges}, {figures['sampling/generation_time']:.3g}",
                )


@contextmanager
def model_runner(number: str | None) -> Iterator[None]:
    """Within the context, vLLM uses model runner V2 ("1") or V1 ("0"); `None` lets it choose."""
    before = os.environ.pop(RUNNER, None)
    if number is not None:
        os.environ[RUNNER] = number
    try:
        yield
    finally:
        os.environ.pop(RUNNER, None)
        if before is not None:
            os.environ[RUNNER] = before
