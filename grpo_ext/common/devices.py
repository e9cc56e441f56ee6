"""What this machine can compute on."""

from __future__ import annotations

from pathlib import Path


def gpu_is_there() -> bool:
    """Whether this machine has a CUDA device, asked without importing torch."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/gpus").is_dir()


def accelerator_is_there() -> bool:
    """Whether torch can compute on anything but the CPU here; where that is CUDA, `gpu_is_there` knows sooner."""
    import torch

    return torch.accelerator.is_available()
