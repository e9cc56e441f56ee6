"""The devices of this machine, and how its threads wait."""

import os
import sys
from pathlib import Path

WAITING = (
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
)  # variables that set how threads wait for each other


def gpu_is_there() -> bool:
    """Whether this machine has a CUDA device, asked without importing torch."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/gpus").is_dir()


def settings_here(use_cpu: bool | None, bf16: bool | None) -> dict[str, bool]:
    """Return `use_cpu` and `bf16` for a machine without an accelerator, if `use_cpu` is unset."""
    import torch

    if use_cpu is not None or torch.accelerator.is_available():  # `gpu_is_there` knows only CUDA
        return {}
    return {"use_cpu": True, "bf16": bool(bf16)}


def wait_calmly() -> None:
    """Without a GPU, let waiting threads sleep, unless the user chose or torch is loaded already.

    Spinning threads make a training step ten times as long beside another busy process.
    """
    chosen = any(name in os.environ for name in WAITING)
    if not (chosen or gpu_is_there() or "torch" in sys.modules):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def how_threads_wait(count: int) -> str:
    """Return the number of threads in words, with advice if they spin."""
    if count == 1 or any(name in os.environ for name in WAITING):
        return f"{count} thread{'s' * (count > 1)}"
    return (
        f"{count} threads, which spin while they wait: beside other work, set "
        "OMP_WAIT_POLICY=PASSIVE before Python starts"
    )
