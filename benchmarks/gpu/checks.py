"""The parts that pass or fail: the demo, the tests, and a run that is killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.parts import Mode
from benchmarks.gpu.sheet import Sheet

COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped)")
# Tests that fork a process which trains: CUDA does not survive a fork.
FORKING_TESTS = (
    "test_early_rewards",
    "test_faults",
    "test_killed_in_an_episode",
    "test_nothing_left",
    "test_overlap",
    "test_sampler_process",
    "test_stopping",
)


def demo(mode: Mode, sheet: Sheet) -> None:
    """Run `grpo-ext demo` as a user does; it trains on the CPU of the machine."""
    steps = 2 if mode.dry else 5 if mode.quick else None
    with tempfile.TemporaryDirectory() as folder:
        sheet.predict(
            "seconds",
            mode.size(90, 45, 40),
            "s",
            "about a minute on four cores of a CPU, and 30 s of starting",
        )
        words = [
            sys.executable,
            "-m",
            "grpo_ext",
            "demo",
            *(["--max_steps", str(steps)] if steps else []),
        ]
        begun = time.monotonic()
        path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
        subprocess.run(words, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": path})
        sheet.measured("seconds", time.monotonic() - begun)
        if steps is None:
            found = {}
            for when in ("before", "after"):
                file = next(Path(folder).rglob(f"eval_{when}.json"))
                found[when] = json.loads(file.read_text(encoding="utf-8"))
            sheet.fact("evaluation", "in the JSON file", evaluation=found)


def pytest_part(
    paths: list[str],
    sheet: Sheet,
    least: int,
    options: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run tests, and record how many passed and what they reported; raise an error if one failed.

    Args:
        paths: the paths of the tests.
        sheet: takes the counts.
        least: how many tests must pass.
        options: further options of pytest.
        variables: environment variables in addition to those of this process.
    """
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.jsonl"
        sheet.predict("tests that fail", 0, "tests", "none fails on a CPU", ("<=", 0))
        sheet.predict(
            "tests that pass",
            least,
            "tests",
            "counted on a CPU, with room for those that need two devices",
            (">=", least),
        )
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *paths]
        environment = {**os.environ, **(variables or {}), "GPU_FIGURES": str(figures)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        print(done.stdout[-6000:], done.stderr[-2000:], flush=True)
        counts = {
            name.rstrip("s") if name.startswith("error") else name: int(n)
            for n, name in COUNTS.findall(done.stdout[-400:])
        }
        for line in figures.read_text(encoding="utf-8").splitlines() if figures.exists() else []:
            row = json.loads(line)
            sheet.fact(
                row.pop("what"),
                ", ".join(f"{key} {value:.3g}" for key, value in row.items()),
                **row,
            )
        skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
        sheet.fact("tests that were skipped", counts.get("skipped", 0), "tests", reasons=skipped)
        sheet.measured("tests that fail", counts.get("failed", 0) + counts.get("error", 0))
        sheet.measured("tests that pass", counts.get("passed", 0))
        if done.returncode:
            raise SystemExit(f"pytest ended with {done.returncode}")


def tests(mode: Mode, sheet: Sheet) -> None:
    """Run the tests of the trainer and of the objective, on all cores."""
    if mode.dry:
        pytest_part(
            ["tests/objective", "tests/trainer/test_scoring.py"], sheet, 20, ["-m", "not slow"]
        )
        return
    forking = [f"--ignore=tests/trainer/{name}.py" for name in FORKING_TESTS]
    selection = ["-m", "not slow"] if mode.quick else []
    pytest_part(
        ["tests/objective", "tests/trainer"],
        sheet,
        mode.size(600, 500, 0),
        ["-n", "12", *forking, *selection],
        {"TRAIN_ON_GPU": "1", "OMP_NUM_THREADS": "1"},
    )


def safety(mode: Mode, sheet: Sheet) -> None:
    """Test shared prompts, leakage, float32 sums, kept sets, a stale engine and gathered tables.

    The emulation on a CPU is tested as well.
    """
    pytest_part(["tests/gpu", "--ignore=tests/gpu/test_gpu_vllm.py"], sheet, 25 if mode.dry else 48)


def vllm(mode: Mode, sheet: Sheet) -> None:
    """Test a vLLM engine: log-probs, an ignored update, ways to share one card, adapters."""
    from importlib.util import find_spec

    if not find_spec("vllm"):
        sheet.fact("vLLM", "not installed: left out")
        return
    pytest_part(["tests/gpu/test_gpu_vllm.py"], sheet, 5 if mode.dry else 8)


def kill(mode: Mode, sheet: Sheet) -> None:
    """Kill a run after step 2 of 4 on the device, and repeat the same call.

    The weights must be those of an uninterrupted run.
    """
    from tests.support.fault_runs import build_start

    folder = Path(tempfile.mkdtemp())
    what = "largest difference of a weight after SIGKILL and resume"
    sheet.predict(
        what, 0, "", "states are restored bit for bit, and the same kernels run", ("<=", 1e-6)
    )
    start = build_start(folder / "model")
    steps = partial(_steps, start, not mode.dry)
    whole = folder / "whole"
    broken = folder / "broken"
    for body, expected in (
        (partial(steps, whole), 0),
        (partial(steps, broken, 2), -signal.SIGKILL),
        (partial(steps, broken), 0),
    ):
        if (code := _in_process(body, mode)) != expected:
            raise RuntimeError(f"a run ended with {code}, not with {expected}")
    a, b = (torch.load(path / "weights.pt", weights_only=True) for path in (whole, broken))
    first = torch.load(whole / "first.pt", weights_only=True)
    moved = max(float((a[name] - first[name]).abs().max()) for name in a)
    sheet.fact("largest change of a weight by the training", moved)
    sheet.measured(what, max(float((a[name] - b[name]).abs().max()) for name in a))
    shutil.rmtree(folder)


def _in_process(body: Callable[[], Any], mode: Mode) -> int:
    """Return the exit code of a process that calls `body`; CUDA does not survive a fork."""
    context: Any = multiprocessing.get_context("fork" if mode.dry else "spawn")
    process = context.Process(target=body)
    process.start()
    process.join()
    return int(process.exitcode or 0)


def _steps(model: Path, on_gpu: bool, out: Path, kill_after: int | None = None) -> None:
    """Train to step 4 from the newest checkpoint, or until the process kills itself."""
    from grpo_ext.trainer.manifest import checkpoints
    from tests.support.fault_runs import KillAt, make

    settings: dict[str, Any] = {"max_steps": 4, "use_cpu": not on_gpu, "learning_rate": 1e-3}
    trainer = make(model, out, **settings)
    if not checkpoints(out):
        out.mkdir(parents=True, exist_ok=True)
        torch.save(
            {name: p.detach().cpu() for name, p in trainer.model.named_parameters()},
            out / "first.pt",
        )
    if kill_after is not None:
        trainer.add_callback(KillAt(kill_after))
    trainer.train(resume_from_checkpoint=True if checkpoints(out) else None)
    torch.save(
        {name: p.detach().cpu() for name, p in trainer.model.named_parameters()}, out / "weights.pt"
    )
