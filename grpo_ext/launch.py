"""`grpo-ext train` starts `accelerate launch` for the recipe, in a way that really starts as many processes as asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from grpo_ext.recipe.folder import accelerate_config


def launch_command(
    module: str, words: list[str], config_name: str | None, num_processes: int | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command and the environment variables that start `module` with `words`.

    Args:
        module: what to run, such as `grpo_ext.train`.
        words: its command line.
        config_name: an accelerate config, by name or file; `None` picks `cpu` or `single_gpu` by the machine.
        num_processes: how many to start; `None`: what the config says.

    accelerate's CPU mode starts one process whatever number it is asked for. Several are started by its distributed
    launcher with `ACCELERATE_USE_CPU` set.
    """
    path, config = read_accelerate_config(config_name)
    processes = num_processes or config.get("num_processes") or 1
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
    environment = {}
    if config.get("use_cpu") and processes > 1:
        environment["ACCELERATE_USE_CPU"] = "true"
        launch += ["--multi_gpu", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        launch += ["--main_process_port", "0"]
    else:
        launch += ["--config_file", str(path)]
    launch += ["--num_processes", str(processes)]
    if config.get("use_cpu") and "OMP_NUM_THREADS" not in os.environ:
        launch += ["--num_cpu_threads_per_process", str(max(1, (os.cpu_count() or 1) // processes))]
    return [*launch, "-m", module, *words], environment


def read_accelerate_config(name: str | None) -> tuple[Path, dict[str, Any]]:
    """The path and the settings of an accelerate config; `None` picks `cpu` or `single_gpu` by the machine."""
    path = accelerate_config(name or ("single_gpu" if gpu_is_there() else "cpu"))
    return path, yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def launch(
    module: str,
    words: list[str],
    config_name: str | None,
    num_processes: int | None = None,
    environment: dict[str, str] | None = None,
) -> int:
    """Run `launch_command(...)` with more `environment` variables, print it first, and return its exit code."""
    command, own = launch_command(module, words, config_name, num_processes)
    environment = {**(environment or {}), **own}
    shown = [f"{key}={value}" for key, value in environment.items()] + ["accelerate launch", *command[3:]]
    print("$", " ".join(shown), flush=True)
    process = subprocess.Popen(command, env={**os.environ, **environment})
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the child got it, too: let it finish
            continue


def gpu_is_there() -> bool:
    """Whether this machine has a CUDA device, asked without importing torch."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/gpus").is_dir()


def accelerator_is_there() -> bool:
    """Whether torch can compute on anything but the CPU here; where that is CUDA, `gpu_is_there` knows sooner."""
    import torch

    return torch.accelerator.is_available()


def check_ranks() -> None:
    """Stop where accelerate was asked for several processes and started one.

    For a CPU accelerate sets the rendezvous address of several processes, and then starts a single one without a rank.

    Raises:
        SystemExit: with what to do instead.
    """
    asked = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_PORT" in os.environ
    if asked and "WORLD_SIZE" not in os.environ and os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true":
        raise SystemExit(
            "accelerate was asked for several processes on a CPU and started only one. Use `--config_file "
            "recipes/accelerate/cpu_2.yaml`, or `grpo-ext train --num_processes N`, which start them all."
        )
