"""Read and write the files of figures in `benchmarks/results/`.

A file says what was measured, on which machine, when, and at which commit.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def save(path: Path, figures: Any) -> None:
    """Write figures and their origin as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    measured = {
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "versions": versions(),
        "figures": figures,
    }
    path.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def load(name: str) -> Any:
    """Return the figures in `results/NAME.json`."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["figures"]


def versions() -> dict[str, str]:
    """Return the versions of those installed packages that figures depend on."""
    installed = {}
    for package in ("torch", "transformers", "trl", "vllm"):
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def machine() -> str:
    """Return the processor, the number of its cores, and the threads of torch."""
    processor = platform.processor() or platform.machine()
    description = Path("/proc/cpuinfo")
    if description.is_file():
        for line in description.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return f"{processor}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def commit() -> str | None:
    """Return the commit of the checkout; `None` outside of one."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None
