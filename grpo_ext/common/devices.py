"""The devices of this machine, and whether waiting threads spin or sleep."""

import os
import sys
from pathlib import Path

WAITING = (
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
)  # environment variables that set how threads wait for each other


def gpu_is_there() -> bool:
    """Return whether this machine has an NVIDIA GPU, without importing torch."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/gpus").is_dir()


def settings_here(use_cpu: bool | None, bf16: bool | None) -> dict[str, bool]:
    """Return `use_cpu` and `bf16` for a machine without an accelerator.

    Returns `{}` if the machine has one, or if `use_cpu` is already set. A `bf16` of `None` becomes
    `False`.
    """
    import torch

    if use_cpu is not None or torch.accelerator.is_available():  # `gpu_is_there` knows only CUDA
        return {}
    return {"use_cpu": True, "bf16": bool(bf16)}


def wait_calmly() -> None:
    """On a machine without a GPU, make waiting threads sleep instead of spinning.

    Does nothing if the user has set one of `WAITING` or torch is already imported. Spinning threads
    make a training step ten times as slow while another process is busy.
    """
    chosen = any(name in os.environ for name in WAITING)
    if not (chosen or gpu_is_there() or "torch" in sys.modules):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def how_threads_wait(count: int) -> str:
    """Describe the number of threads, with advice if they spin while they wait."""
    if count == 1 or any(name in os.environ for name in WAITING):
        return f"{count} thread{'s' * (count > 1)}"
    return (
        f"{count} threads that spin while they wait: if other programs run too, set "
        "OMP_WAIT_POLICY=PASSIVE before Python starts"
    )
