"""What this machine can compute on."""

from __future__ import annotations

from pathlib import Path


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
