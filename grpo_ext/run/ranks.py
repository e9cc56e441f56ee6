"""What a process that trains does for the launcher that started it: check its ranks, tell it, end with it, leave in order."""

import gc
import os
import signal
import threading
import time
from pathlib import Path

import psutil

EXIT_INTERRUPTED = 75  # EX_TEMPFAIL: stopped by a signal with a checkpoint; the same command goes on
LAUNCHER = "GRPO_EXT_LAUNCHER"  # the command's process, without which no rank goes on
RANKS = "GRPO_EXT_RANKS"  # the folder in which ranks tell the command that they take signals, and their exit codes


def end_with_launcher() -> None:
    """Where `grpo-ext train` started this process, end it when that is killed: started again, it would write the same files."""
    if launcher := os.environ.get(LAUNCHER):
        threading.Thread(target=_watch, args=(int(launcher),), name="launcher-watch", daemon=True).start()


def _watch(launcher: int) -> None:
    while lives(launcher):
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def tell_ready() -> None:
    """Let `grpo-ext train`, where it started this process, know that it takes signals now."""
    if folder := os.environ.get(RANKS):
        Path(folder, f"rank-{os.getpid()}").touch()


def tell_exit(code: int) -> int:
    """Let `grpo-ext train`, where it started this process, know the exit code; returns what to leave with.

    That is 0 for an interrupted run: torch's launcher would report a failure, and end the other ranks.
    """
    folder = os.environ.get(RANKS)
    if not folder:
        return code
    Path(folder, f"exit-{os.getpid()}").write_text(str(code))
    return 0 if code == EXIT_INTERRUPTED else code


def leave_ranks() -> None:
    """End this process's part of the process group, if it has one. Called once no trainer is in scope.

    A gloo thread that frees the tensors of its last collective while Python is being torn down aborts the process (SIGABRT,
    "terminate called without an active exception"); and where a trainer still holds the group when it is ended, that thread
    and the one that frees the trainer can wait for each other.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        gc.collect()  # a trainer is part of reference cycles, and DDP's reducer within it holds the group
        time.sleep(0.1)  # DeepSpeed holds groups for good: let their threads have the interpreter while it is there
        dist.destroy_process_group()


def check_ranks() -> None:
    """Stop, and say what to do, where accelerate was asked for several processes and started one.

    For a CPU it sets the rendezvous address of several processes, and then starts a single one without a rank.
    """
    asked = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_PORT" in os.environ
    if asked and "WORLD_SIZE" not in os.environ and os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true":
        how = "`--config_file recipes/accelerate/cpu_2.yaml`, or `grpo-ext train --num_processes N`, which start them all."
        raise SystemExit(f"accelerate was asked for several processes on a CPU and started only one. Use {how}")


def check_sharding(fsdp: bool, deepspeed: bool) -> None:
    """Stop, and say what to do, where the launcher asked for a sharded model and the trainer does not shard.

    On a CPU accelerate gives each rank the whole model.
    """
    for name, variable, sharded in (("FSDP", "FSDP", fsdp), ("DeepSpeed", "DEEPSPEED", deepspeed)):
        if os.environ.get(f"ACCELERATE_USE_{variable}", "").lower() == "true" and not sharded:
            why = "it shards on GPUs only, and on a CPU gives each rank the whole model without a word"
            words = f"The accelerate config asks for {name}, and accelerate has set up none here"
            raise SystemExit(f"{words}: {why}. Use recipes/accelerate/cpu_2.yaml there.")


def lives(pid: int) -> bool:
    """Whether a process runs, or cannot be asked; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error as error:
        return not isinstance(error, psutil.NoSuchProcess)
