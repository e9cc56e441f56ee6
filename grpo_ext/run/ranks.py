"""How a training process cooperates with the launcher that started it.

The process checks that all ranks have been started and that the requested sharding is set up. It
reports that its signal handlers are installed and, later, its exit code. It dies with the launcher,
and shuts down cleanly.
"""

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

# EX_TEMPFAIL: a signal ended the run with a checkpoint; the same command continues it
EXIT_INTERRUPTED = 75
# environment variables
LAUNCHER = "GRPO_EXT_LAUNCHER"  # process id of `grpo-ext train`; the ranks die with this process
RANKS = "GRPO_EXT_RANKS"  # folder in which ranks report that they handle signals, and exit codes


def end_with_launcher() -> None:
    """Start a thread that kills this process when the `grpo-ext` command that started it ends.

    If the process kept running, it would write to the same files as a second run of the command.
    Does nothing if this process was started in another way.
    """
    launcher = os.environ.get(LAUNCHER)
    if launcher:
        threading.Thread(
            target=_die_with,
            args=(int(launcher),),
            name="launcher-watch",
            daemon=True,
        ).start()


def _die_with(pid: int) -> None:
    while is_alive(pid):
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def report_ready() -> None:
    """Tell the `grpo-ext` command, if one started this process, that this process handles signals.

    Call this once the signal handlers are installed; the command passes signals on from then on.
    """
    folder = os.environ.get(RANKS)
    if folder:
        Path(folder, f"rank-{os.getpid()}").touch()


def report_exit(code: int) -> int:
    """Report the exit code to the `grpo-ext` command that started this process, if any.

    Returns:
        The code to exit with: `code`, but 0 if such a command started this process and the run was
        interrupted, because torch's launcher would otherwise report a failure and end the other
        ranks.
    """
    folder = os.environ.get(RANKS)
    if not folder:
        return code
    Path(folder, f"exit-{os.getpid()}").write_text(str(code))
    return 0 if code == EXIT_INTERRUPTED else code


def leave_ranks() -> None:
    """Destroy the process group, if there is one, including the groups of a vLLM engine.

    Otherwise a gloo thread could free the tensors of its last collective while Python shuts down,
    which aborts the process (SIGABRT, "terminate called without an active exception"). No trainer
    may be in scope anymore, because a trainer holds the group, and the gloo thread and the thread
    that frees the trainer could deadlock.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return
    gc.collect()  # trainers are part of reference cycles, and their DDP reducer holds the group
    time.sleep(0.1)  # DeepSpeed never frees its groups, so let their threads finish
    if "vllm.distributed" in sys.modules:
        # An engine in this process destroys its groups as Python exits, too late for torch.
        from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

        destroy_model_parallel()
        destroy_distributed_environment()
    if dist.is_initialized():
        dist.destroy_process_group()


def check_ranks() -> None:
    """Raise `SystemExit` if accelerate was asked for several processes but started only one.

    For several processes on a CPU, accelerate sets a rendezvous address, but starts one process
    without a rank.
    """
    has_rendezvous = {"ACCELERATE_MIXED_PRECISION", "MASTER_PORT"} <= os.environ.keys()
    if has_rendezvous and "WORLD_SIZE" not in os.environ and is_set("ACCELERATE_USE_CPU"):
        raise SystemExit(
            "accelerate was asked for several processes on a CPU, but started only one. Use "
            "`accelerate launch --config_file recipes/accelerate/cpu_2.yaml`, or `grpo-ext train` "
            "or `grpo-ext sft` with --num_processes N."
        )


def check_sharding(fsdp: bool, deepspeed: bool) -> None:
    """Raise `SystemExit` if the launcher asked for sharding that was not set up in the trainer.

    Args:
        fsdp: whether the trainer shards the model with FSDP.
        deepspeed: whether the trainer shards the model with DeepSpeed.
    """
    for name, is_sharded in (("FSDP", fsdp), ("DeepSpeed", deepspeed)):
        if is_set(f"ACCELERATE_USE_{name.upper()}") and not is_sharded:
            raise SystemExit(
                f"The accelerate config asks for {name}, which accelerate has not set up. On a "
                "CPU, accelerate never shards, and silently gives each rank the complete model. To "
                "train on a CPU, set `accelerate_config: cpu_2`, or pass "
                "recipes/accelerate/cpu_2.yaml to `accelerate launch --config_file`."
            )


def is_set(variable: str) -> bool:
    """Return whether the value of an environment variable is "true", ignoring case."""
    return os.environ.get(variable, "").lower() == "true"


def is_alive(pid: int) -> bool:
    """Return whether a process is running.

    A zombie counts as not running; a process that cannot be queried counts as running.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error as error:
        return not isinstance(error, psutil.NoSuchProcess)
