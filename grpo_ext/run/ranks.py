"""The duties of a training process towards its launcher: check the ranks, report, end with it, end in order."""

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

EXIT_INTERRUPTED = (
    75  # EX_TEMPFAIL: a signal ended the run with a checkpoint; the same command continues it
)
LAUNCHER = "GRPO_EXT_LAUNCHER"  # process id of the command; its ranks end with it
RANKS = (
    "GRPO_EXT_RANKS"  # folder in which ranks report that they handle signals, and their exit codes
)


def end_with_launcher() -> None:
    """End this process when the `grpo-ext train` that started it is killed: a new start would write the same files."""
    if launcher := os.environ.get(LAUNCHER):
        threading.Thread(
            target=_watch, args=(int(launcher),), name="launcher-watch", daemon=True
        ).start()


def _watch(launcher: int) -> None:
    while lives(launcher):
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def tell_ready() -> None:
    """Report to `grpo-ext train`, if it started this process, that it handles signals now."""
    if folder := os.environ.get(RANKS):
        Path(folder, f"rank-{os.getpid()}").touch()


def tell_exit(code: int) -> int:
    """Report the exit code to `grpo-ext train`, if it started this process, and return the code to exit with.

    That is 0 for an interrupted run, since torch's launcher would report a failure and end the other ranks.
    """
    folder = os.environ.get(RANKS)
    if not folder:
        return code
    Path(folder, f"exit-{os.getpid()}").write_text(str(code))
    return 0 if code == EXIT_INTERRUPTED else code


def leave_ranks() -> None:
    """Destroy the process group, if there is one, when no trainer is in scope any more.

    Otherwise a gloo thread can free the tensors of its last collective while Python shuts down, which aborts the process
    (SIGABRT, "terminate called without an active exception"). If a trainer still held the group, that thread and the one that
    frees the trainer could wait for each other.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return
    gc.collect()  # a trainer is in reference cycles, and its DDP reducer holds the group
    time.sleep(0.1)  # DeepSpeed never frees its groups: let their threads finish
    if "vllm.distributed" in sys.modules:
        # An engine in this process destroys its groups as Python exits, when torch has forgotten them.
        from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

        destroy_model_parallel()
        destroy_distributed_environment()
    if dist.is_initialized():
        dist.destroy_process_group()


def check_ranks() -> None:
    """Raise `SystemExit` if accelerate was asked for several processes and started one.

    On a CPU it sets the rendezvous address of several processes and starts a single one without a rank.
    """
    asked = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_PORT" in os.environ
    if (
        asked
        and "WORLD_SIZE" not in os.environ
        and os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
    ):
        how = "`--config_file recipes/accelerate/cpu_2.yaml`, or `grpo-ext train --num_processes N`, which start them all."
        raise SystemExit(
            f"accelerate was asked for several processes on a CPU and started only one. Use {how}"
        )


def check_sharding(fsdp: bool, deepspeed: bool) -> None:
    """Raise `SystemExit` if the launcher asked for a sharded model and the trainer does not shard, as on a CPU."""
    for name, variable, sharded in (("FSDP", "FSDP", fsdp), ("DeepSpeed", "DEEPSPEED", deepspeed)):
        if os.environ.get(f"ACCELERATE_USE_{variable}", "").lower() == "true" and not sharded:
            why = "it shards only on GPUs, and silently gives each rank the whole model on a CPU"
            words = f"The accelerate config asks for {name}, and accelerate has not set it up"
            raise SystemExit(f"{words}: {why}. Use recipes/accelerate/cpu_2.yaml there.")


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not, and a process that cannot be queried counts as running."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error as error:
        return not isinstance(error, psutil.NoSuchProcess)
