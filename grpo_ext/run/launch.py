"""The start of `accelerate launch` for a recipe, such that as many processes run as asked."""

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
from typing import TYPE_CHECKING, Any

from grpo_ext.common.devices import gpu_is_there
from grpo_ext.recipe.folder import accelerate_config, accelerate_settings
from grpo_ext.run.ranks import EXIT_INTERRUPTED, LAUNCHER, RANKS, lives

if TYPE_CHECKING:
    from grpo_ext.recipe.load import Recipe

SMALL = 5_000_000  # parameters; the matrix products of such a model are too small to be shared among threads
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def launch_command(
    module: str,
    words: list[str],
    config_name: str | None,
    num_processes: int | None = None,
    threads: int | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables that start the module with its words.

    accelerate's CPU mode starts one process whatever number it is asked for; its distributed launcher with `ACCELERATE_USE_CPU`
    starts several. `config_name` is a name or a file; `None`: `cpu` or `single_gpu`, by the machine. `num_processes` replaces
    that of the config; `threads` are those of each process on a CPU; `None`: all cores, shared.
    """
    name = config_name or ("single_gpu" if gpu_is_there() else "cpu")
    config = accelerate_settings(name)
    processes = num_processes or config.get("num_processes") or 1
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
    environment = {}
    if config.get("use_cpu") and processes > 1:
        environment["ACCELERATE_USE_CPU"] = "true"
        launch += [
            "--multi_gpu",
            "--num_machines",
            "1",
            "--mixed_precision",
            "no",
            "--dynamo_backend",
            "no",
        ]
        launch += ["--main_process_port", "0"]
    else:
        launch += ["--config_file", str(accelerate_config(name))]
    launch += ["--num_processes", str(processes)]
    if config.get("use_cpu") and "OMP_NUM_THREADS" not in os.environ:
        launch += [
            "--num_cpu_threads_per_process",
            str(threads or max(1, (os.cpu_count() or 1) // processes)),
        ]
    return [*launch, "-m", module, *words], environment


def threads_of(recipe: Recipe) -> int | None:
    """Return 1 if the recipe's model is tiny, since threads would wait for each other longer than they compute; else `None`.

    Only the model decides: another number of threads rounds sums differently, and a run would not resume bit for bit.
    """
    if gpu_is_there() or "OMP_NUM_THREADS" in os.environ:
        return None
    from grpo_ext.preflight.forecast import model_size

    size = model_size(recipe.flat, recipe.model)
    return 1 if size and size.parameters < SMALL else None


def launch(
    module: str,
    words: list[str],
    recipe: Recipe,
    num_processes: int | None = None,
    environment: dict[str, str] | None = None,
) -> int:
    """Run `launch_command(...)` for the recipe, with more `environment` variables, and return the exit code of its ranks.

    SIGTERM, SIGUSR1, SIGHUP and Ctrl-C are passed on to the ranks, which end with a checkpoint after their step; before they
    train, the command ends at once. accelerate turns every exit code but 0 into 1, so the ranks write theirs into a folder.
    """
    command, own = launch_command(
        module, words, recipe.get("accelerate_config"), num_processes, threads_of(recipe)
    )
    environment = {**(environment or {}), **own}
    shown = [f"{key}={value}" for key, value in environment.items()] + [
        "accelerate launch",
        *command[3:],
    ]
    print("$", " ".join(shown), flush=True)
    with tempfile.TemporaryDirectory(prefix="grpo_ext-") as folder:
        ours = {RANKS: folder, LAUNCHER: str(os.getpid())}
        return Launched(command, {**os.environ, **environment, **ours}, Path(folder)).wait()


class Launched:
    """A launcher and the ranks that it has started."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path):
        self.folder = folder
        self.passed = 0  # the last signal
        self._before = {
            s: signal.signal(s, self._pass_on)
            for s in PASSED_ON
            if signal.getsignal(s) != signal.SIG_IGN
        }
        # In a new session Ctrl-C reaches accelerate only through us; otherwise it would end while its ranks go on unseen.
        # Schedulers send SIGUSR1 to every process, and only ranks know what to do with it.
        ignore = partial(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
        self.process = subprocess.Popen(
            command, env=environment, start_new_session=True, preexec_fn=ignore
        )

    def wait(self) -> int:
        """Wait for the launcher and for ranks that outlive it, and return the exit code of the ranks."""
        try:
            code = self.process.wait()
            while any(map(lives, self.ranks())):
                time.sleep(0.2)
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        codes = [int(path.read_text() or 1) for path in self.folder.glob("exit-*")]
        if (
            code and not codes and self.passed
        ):  # ended at once: before the first step, or by a second Ctrl-C
            return 128 + self.passed
        if EXIT_INTERRUPTED in codes:
            return EXIT_INTERRUPTED
        return 2 if code and 2 in codes else code

    def ranks(self) -> list[int]:
        """Return the ids of the processes that train."""
        return [int(path.name.rpartition("-")[2]) for path in self.folder.glob("rank-*")]

    def _pass_on(self, number: int, frame: Any) -> None:
        self.passed = number
        ranks = [pid for pid in self.ranks() if lives(pid)]
        for pid in ranks:
            os.kill(pid, signal.SIGTERM if number == signal.SIGHUP else number)
        if not ranks:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM if number == signal.SIGUSR1 else number)
