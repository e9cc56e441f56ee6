"""What this machine can compute on."""

import os
import sys
from pathlib import Path

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # what says how threads wait for each other


def gpu_is_there() -> bool:
    """Whether this machine has a CUDA device, asked without importing torch."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/gpus").is_dir()


def settings_here(use_cpu: bool | None, bf16: bool | None) -> dict[str, bool]:
    """What training arguments that say nothing of it become where there is no accelerator: `use_cpu`, and no `bf16`."""
    return {} if use_cpu is not None or accelerator_is_there() else {"use_cpu": True, "bf16": bool(bf16)}


def accelerator_is_there() -> bool:
    """Whether torch can compute on anything but the CPU here; where that is CUDA, `gpu_is_there` knows sooner."""
    import torch

    return torch.accelerator.is_available()


def wait_calmly() -> None:
    """Without a GPU, let threads sleep while they wait for each other, if the user has not chosen and torch is not loaded yet.

    They spin otherwise, and beside another busy process a training step takes ten times as long.
    """
    if not (any(name in os.environ for name in WAITING) or gpu_is_there() or "torch" in sys.modules):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def how_threads_wait(count: int) -> str:
    """So many threads, and what to do about them where they spin."""
    if count == 1 or any(name in os.environ for name in WAITING):
        return f"{count} thread{'s' * (count > 1)}"
    return f"{count} threads, which spin while they wait: beside other work, set OMP_WAIT_POLICY=PASSIVE before Python starts"
