"""Find the GPU and the memory of this machine, and set whether waiting threads spin or sleep."""

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

from grpo_ext.common.foreign_files import read_text

# the files of cgroups 1 and 2 that limit a container's memory
CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
WAITING = (
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
)  # environment variables that control how threads wait for each other

SHORT_SPIN = "1000"  # rounds before a waiting thread of GNU's OpenMP sleeps: about 20 microseconds


def gpu_is_there() -> bool:
    """Return whether this machine has an NVIDIA GPU, without importing torch."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/gpus").is_dir()


def device_bytes(use_cpu: bool) -> int:
    """Return the memory of the first CUDA GPU or the main memory, in bytes.

    The main memory is returned if there is no CUDA GPU or `use_cpu` is true. In a container, it
    counts only up to the container's limit.
    """
    import psutil
    import torch

    if not use_cpu and torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory
    limits = [psutil.virtual_memory().total]
    for limit_file in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or the word "max"
            limits.append(int(read_text(limit_file)))
    return min(limits)


def settings_here(use_cpu: bool | None, bf16: bool | None) -> dict[str, bool]:
    """Return the settings `use_cpu` and `bf16` to apply on a machine without an accelerator.

    The dict sets `use_cpu` to `True`, and `bf16` to the given value (`False` if it is `None`). The
    dict is empty if the machine has an accelerator, or if the argument `use_cpu` is not `None`,
    which means that the user has set it.
    """
    import torch

    # `gpu_is_there` would detect only NVIDIA GPUs
    if use_cpu is not None or torch.accelerator.is_available():
        return {}
    return {"use_cpu": True, "bf16": bool(bf16)}


def bfloat16_is_slow() -> bool:
    """Return whether the CPU is an x86 processor without AVX-512.

    In our measurements on such processors, matrix multiplications take at least ten times as long
    in bfloat16 as in float32.
    """
    import torch

    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and torch.backends.cpu.get_cpu_capability() != "AVX512"


def wait_calmly() -> None:
    """On a machine without a GPU, make torch's waiting threads sleep after a short spin.

    Sets environment variables, which torch's threading libraries read when torch is imported. Does
    nothing if the user has set one of `WAITING`, or if torch is already imported.

    By default, the threads spin for so long that a training step takes about ten times as long
    while another process is busy. If they slept without spinning first, a step would take about
    twice as long on an idle machine.
    """
    chosen = any(name in os.environ for name in WAITING)
    if chosen or gpu_is_there() or "torch" in sys.modules:
        return
    os.environ["GOMP_SPINCOUNT"] = SHORT_SPIN
    # for OpenMP libraries other than GNU's, such as the one on macOS
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def how_threads_wait(count: int) -> str:
    """Return a phrase such as `1 thread`, with advice if there are several threads that may spin.

    Threads may spin while they wait if none of the variables in `WAITING` is set.
    """
    if count == 1 or any(name in os.environ for name in WAITING):
        return f"{count} thread{'s' * (count > 1)}"
    return (
        f"{count} threads that spin while they wait: if other programs run too, set "
        "OMP_WAIT_POLICY=PASSIVE before Python starts"
    )
