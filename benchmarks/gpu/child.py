"""Run parts in separate processes: their Python, their environment, and their time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.parts import Mode

PLACE = (
    Path(tempfile.gettempdir()) / "grpo-ext-gpu"
)  # outside the checkout: a fresh machine begins without it
SITE = PLACE / "site"
VLLM = PLACE / "vllm"
LINES = 12  # of a failing part's output that are kept


def vllm_python(mode: Mode) -> str:
    """Return the path of a Python that has vLLM, or else of this one."""
    of_cpu = Path(".venv-vllm/bin/python") if mode.dry else None
    for python in (mode.vllm_python, VLLM / "bin" / "python", of_cpu):
        if python is not None and python.exists():
            return str(python.absolute())
    return sys.executable


def has_vllm(mode: Mode) -> bool:
    """Return whether `vllm_python` has vLLM."""
    return vllm_python(mode) != sys.executable or find_spec("vllm") is not None


def command_of(name: str, mode: Mode, folder: Path, vllm: bool) -> list[str]:
    """Return the command that runs a part in a process."""
    words = [
        vllm_python(mode) if vllm else sys.executable,
        "-u",
        "-m",
        "benchmarks.gpu",
        "--only",
        name,
        "--out",
        str(folder),
    ]
    words += ["--dry_run"] * mode.dry + ["--quick"] * mode.quick
    given = {"--wheels": mode.wheels, "--vllm_python": mode.vllm_python, "--model": mode.model}
    return words + [word for name, path in given.items() if path for word in (name, str(path))]


def environment(mode: Mode, vllm: bool = False) -> dict[str, str]:
    """Return the environment variables of a part's process.

    No network, what `setup` has installed, and threads that suit the machine.
    """
    paths = [str(SITE), os.getcwd(), os.environ.get("PYTHONPATH", "")]
    found = {"PYTHONPATH": os.pathsep.join(path for path in paths if path), "HF_HUB_OFFLINE": "1"}
    found |= {
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    if mode.dry:
        found |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    elif not vllm:  # whose sleep mode refuses it
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return {**os.environ, **found}


def run_limited(
    command: list[str], log: Path, seconds: float, variables: dict[str, str] | None = None
) -> int | None:
    """Run a command with its output in a file.

    Return its exit code, or `None` if it was killed after so many seconds.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=variables, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:  # also what it has started: a server, ranks
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def last_lines(log: Path, count: int = LINES) -> str:
    """Return the last lines of a file."""
    return "\n".join(
        log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-count:]
    )
