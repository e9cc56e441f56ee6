"""`grpo-ext train` starts `accelerate launch` for the recipe, in a way that really starts as many processes as asked."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from grpo_ext.recipe.folder import accelerate_config, accelerate_settings

EXIT_INTERRUPTED = 75  # EX_TEMPFAIL: stopped by a signal with a checkpoint; the same command goes on
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
LAUNCHER = "GRPO_EXT_LAUNCHER"  # the command's process, without which no rank goes on
RANKS = "GRPO_EXT_RANKS"  # the folder in which ranks tell the command that they take signals, and their exit codes


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
    name = name or ("single_gpu" if gpu_is_there() else "cpu")
    return accelerate_config(name), accelerate_settings(name)


def launch(
    module: str,
    words: list[str],
    config_name: str | None,
    num_processes: int | None = None,
    environment: dict[str, str] | None = None,
) -> int:
    """Run `launch_command(...)` with more `environment` variables, print it first, and return the exit code of its ranks.

    SIGTERM, SIGUSR1, SIGHUP and Ctrl-C are passed on to the ranks, which leave with a checkpoint at the end of their step;
    before they train, the command is ended at once. accelerate turns every exit code but 0 into 1: the ranks leave theirs in a
    folder.
    """
    command, own = launch_command(module, words, config_name, num_processes)
    environment = {**(environment or {}), **own}
    shown = [f"{key}={value}" for key, value in environment.items()] + ["accelerate launch", *command[3:]]
    print("$", " ".join(shown), flush=True)
    with tempfile.TemporaryDirectory(prefix="grpo_ext-") as folder:
        ours = {RANKS: folder, LAUNCHER: str(os.getpid())}
        return Launched(command, {**os.environ, **environment, **ours}, Path(folder)).wait()


class Launched:
    """A launcher and the ranks that it has started."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path):
        self.folder = folder
        self.passed = 0  # the last signal
        self._before = {s: signal.getsignal(s) for s in PASSED_ON if signal.getsignal(s) != signal.SIG_IGN}
        for number in self._before:
            signal.signal(number, self._pass_on)
        # A session of its own: Ctrl-C reaches accelerate only through us. It would leave, and its ranks go on unseen.
        # Schedulers send SIGUSR1 to every process, and only ranks know what to do with it.
        ignore = partial(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=ignore)

    def wait(self) -> int:
        """Wait for the launcher and for ranks that outlive it; the ranks' exit code."""
        try:
            code = self.process.wait()
            while any(map(_lives, self.ranks())):
                time.sleep(0.2)
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        told = [int(path.read_text() or 1) for path in self.folder.glob("exit-*")]
        if code and not told and self.passed:  # ended at once: before the first step, or by a second Ctrl-C
            return 128 + self.passed
        if EXIT_INTERRUPTED in told:
            return EXIT_INTERRUPTED
        return 2 if code and 2 in told else code

    def ranks(self) -> list[int]:
        """The processes that train."""
        return [int(path.name.rpartition("-")[2]) for path in self.folder.glob("rank-*")]

    def _pass_on(self, number: int, frame: Any) -> None:
        self.passed = number
        ranks = [pid for pid in self.ranks() if _lives(pid)]
        for pid in ranks:
            os.kill(pid, signal.SIGTERM if number == signal.SIGHUP else number)
        if not ranks:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM if number == signal.SIGUSR1 else number)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    except ProcessLookupError:
        return False
    except OSError:  # no such file system: what is known is that it is there
        return True
    return not state.lstrip().startswith("Z")  # ended, and nobody has asked how


def end_with_launcher() -> None:
    """Where `grpo-ext train` started this process, end it when that is killed: started again, it would write the same files."""
    if launcher := os.environ.get(LAUNCHER):
        threading.Thread(target=_watch, args=(int(launcher),), name="launcher-watch", daemon=True).start()


def _watch(launcher: int) -> None:
    while _lives(launcher):
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


def check_sharding(fsdp: bool, deepspeed: bool) -> None:
    """Stop where the launcher asked for a sharded model and each rank has all of it, as accelerate does on a CPU.

    Args:
        fsdp, deepspeed: whether the trainer that was made shards.

    Raises:
        SystemExit: with what to do instead.
    """
    for name, variable, sharded in (("FSDP", "FSDP", fsdp), ("DeepSpeed", "DEEPSPEED", deepspeed)):
        if os.environ.get(f"ACCELERATE_USE_{variable}", "").lower() == "true" and not sharded:
            raise SystemExit(
                f"The accelerate config asks for {name}, and accelerate has set up none here: it shards on GPUs only, and on a "
                "CPU gives each rank the whole model without a word. Use recipes/accelerate/cpu_2.yaml there."
            )
