"""Start `accelerate launch` for a recipe, with the requested number of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from grpo_ext.common.devices import gpu_is_there
from grpo_ext.recipe.folder import accelerate_config, accelerate_settings
from grpo_ext.run.allocator import allocator_environment
from grpo_ext.run.ranks import EXIT_INTERRUPTED, LAUNCHER, RANKS, is_alive

if TYPE_CHECKING:
    from grpo_ext.recipe.load import Recipe

# below this number of parameters, matrix multiplications are too small to split among threads
SMALL_MODEL = 5_000_000
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# accelerate's CPU mode always starts one process, whatever number is requested; its distributed
# launcher with ACCELERATE_USE_CPU starts several.
CPU_RANKS = (
    "--multi_gpu",
    "--num_machines",
    "1",
    "--mixed_precision",
    "no",
    "--dynamo_backend",
    "no",
    "--main_process_port",
    "0",
)

KILLED = """\
A process of this run was killed, most often because the machine ran out of memory. To continue from
the newest checkpoint, if there is one, run the command again with `--resume auto`, or in supervised
training with `--resume_from_checkpoint true`. To use less memory, lower per_device_train_batch_size
or set gradient_checkpointing: true; `grpo-ext plan` estimates the memory that a recipe needs."""


def launch_command(
    module: str,
    words: list[str],
    config_name: str | None,
    num_processes: int | None = None,
    threads: int | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the `accelerate launch` command for a module, and the environment variables to add.

    Args:
        module: the Python module, such as "grpo_ext.train".
        words: the module's command-line arguments.
        config_name: the name or file of an accelerate config. If `None`, use `single_gpu` if there
            is a GPU, otherwise `cpu`.
        num_processes: the number of processes; `None` uses the number in the config, or 1.
        threads: the number of threads per process on a CPU. If `None`, the cores are divided among
            the processes. Ignored if `OMP_NUM_THREADS` is set.

    Raises:
        ValueError, OSError: if the accelerate config is invalid or cannot be read.
    """
    name = config_name or ("single_gpu" if gpu_is_there() else "cpu")
    config = accelerate_settings(name)
    processes = num_processes or config.get("num_processes") or 1
    command = [sys.executable, "-m", "grpo_ext.run.accelerate_launch", "--quiet"]
    environment = {}
    if config.get("use_cpu") and processes > 1:
        environment["ACCELERATE_USE_CPU"] = "true"
        command += CPU_RANKS
    else:
        command += ["--config_file", str(accelerate_config(name))]
    command += ["--num_processes", str(processes)]
    if config.get("use_cpu"):
        environment |= allocator_environment()
        if "OMP_NUM_THREADS" not in os.environ:
            threads = threads or max(1, (os.cpu_count() or 1) // processes)
            command += ["--num_cpu_threads_per_process", str(threads)]
    return [*command, "-m", module, *words], environment


def threads_of(recipe: Recipe) -> int | None:
    """Return the number of threads per process: 1 for a tiny model, otherwise `None`.

    In a model with fewer than `SMALL_MODEL` parameters, threads wait for each other longer than
    they compute. The number depends only on the model, because a run that resumes with another
    number of threads rounds sums differently, and would not continue bit for bit. The result is
    also `None` if there is a GPU, if `OMP_NUM_THREADS` is set, or if the model's size is unknown.

    Raises:
        ValueError: if the model has no layer that the recipe's adapter names.
    """
    if gpu_is_there() or "OMP_NUM_THREADS" in os.environ:
        return None
    from grpo_ext.preflight.forecast import model_size

    size = model_size(recipe.flat, recipe.model)
    is_tiny = size is not None and size.parameters < SMALL_MODEL
    return 1 if is_tiny else None


def launch(
    module: str,
    words: list[str],
    recipe: Recipe,
    num_processes: int | None = None,
    environment: dict[str, str] | None = None,
) -> int:
    """Run a module with `accelerate launch` for a recipe, and return the exit code of the run.

    SIGTERM, SIGUSR1, SIGHUP and Ctrl-C are passed on to the ranks, which finish their step and exit
    with a checkpoint; before training starts, the command ends immediately. The ranks report their
    exit codes in a temporary folder, because accelerate turns every nonzero exit code into 1.

    Args:
        module: the Python module, such as "grpo_ext.train".
        words: the module's command-line arguments.
        recipe: the recipe that `words` describe.
        num_processes: the number of processes; `None` uses the number in the recipe's accelerate
            config.
        environment: additional environment variables for the launcher and its ranks.

    Raises:
        ValueError: if the accelerate config is invalid, or the model has no layer that the recipe's
            adapter names.
        OSError: if the accelerate config cannot be read.
    """
    command, launch_environment = launch_command(
        module,
        words,
        recipe.get("accelerate_config"),
        num_processes,
        threads_of(recipe),
    )
    environment = {**(environment or {}), **launch_environment}
    assignments = [f"{name}={value}" for name, value in environment.items()]
    print("$", *assignments, "accelerate launch", *command[3:], flush=True)
    with tempfile.TemporaryDirectory(prefix="grpo_ext-") as folder:
        environment = {
            **os.environ,
            **environment,
            RANKS: folder,
            LAUNCHER: str(os.getpid()),
        }
        return Launched(command, environment, Path(folder)).wait()


class Launched:
    """Starts a launcher process, and passes signals on to its ranks.

    Ranks get SIGTERM instead of SIGHUP. While no rank that has reported is alive, the launcher's
    process group gets the signals, with SIGTERM instead of SIGUSR1.

    The constructor starts the process and installs handlers for the signals in `PASSED_ON` that
    this process does not ignore; `wait` restores the previous handlers.

    Args:
        command: the command that starts the launcher.
        environment: the complete environment of the launcher.
        folder: the folder in which ranks report their process ids and exit codes.
    """

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path):
        self.folder = folder
        self.last_signal = 0
        self._previous_handlers = {}
        for number in PASSED_ON:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous_handlers[number] = signal.signal(number, self._pass_on)
        # In a new session, Ctrl-C reaches accelerate only through this process; otherwise
        # accelerate would exit while its ranks keep running unseen. The launcher ignores SIGUSR1,
        # because schedulers send it to every process and only the ranks handle it.
        ignore_sigusr1 = partial(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
        self.process = subprocess.Popen(
            command,
            env=environment,
            start_new_session=True,
            preexec_fn=ignore_sigusr1,
        )

    def wait(self) -> int:
        """Wait for the launcher and all its ranks, and return the exit code of the run.

        The exit code is

        - 128 plus the signal's number if a signal was passed on, and the launcher failed before any
          rank reported an exit code,
        - `EXIT_INTERRUPTED` if a rank reported it,
        - 2 if the launcher failed and a rank reported 2,
        - the launcher's exit code in all other cases.

        If the launcher failed, a rank ended without reporting an exit code, and no signal was
        passed on, print on stderr that a process was killed.
        """
        try:
            code = self.process.wait()
            while any(map(is_alive, self.ranks())):
                time.sleep(0.2)
        finally:
            for number, handler in self._previous_handlers.items():
                signal.signal(number, handler)
        exits = list(self.folder.glob("exit-*"))
        rank_codes = [int(path.read_text() or 1) for path in exits]
        if code and not self.last_signal and len(exits) < len(self.ranks()):
            print(KILLED, file=sys.stderr)
        if code and not rank_codes and self.last_signal:
            # the run ended at once, before the first step or by a second Ctrl-C
            return 128 + self.last_signal
        if EXIT_INTERRUPTED in rank_codes:
            return EXIT_INTERRUPTED
        return 2 if code and 2 in rank_codes else code

    def ranks(self) -> list[int]:
        """Return the process ids of all ranks that have reported, even if they have ended since."""
        names = [path.name for path in self.folder.glob("rank-*")]
        return [int(name.removeprefix("rank-")) for name in names]

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.last_signal = number
        ranks = [pid for pid in self.ranks() if is_alive(pid)]
        if ranks:
            if number == signal.SIGHUP:
                number = signal.SIGTERM
            for pid in ranks:
                os.kill(pid, number)
            return
        if number == signal.SIGUSR1:
            number = signal.SIGTERM
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
