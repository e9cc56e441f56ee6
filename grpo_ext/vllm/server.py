"""Start, watch, restart and stop a recipe's vLLM server."""

import ipaddress
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from grpo_ext.common.devices import gpu_is_there
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.rules import Values
from grpo_ext.vllm import EngineFailure
from grpo_ext.vllm.http import PROBE_SECONDS, VllmLine, who_answers
from grpo_ext.vllm.settings import TextModel, server_command, server_url
from grpo_ext.vllm.signature import KEY

logger = logging.getLogger(__name__)
STOP_SECONDS = 20.0
# environment variables that a launcher of trainers sets
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LOG = "vllm_server.log"  # in the run's folder


class Server:
    """Manages the process of a vLLM server; `start` or `running` starts the process.

    Args:
        command: the command line.
        url: the address of the server.
        log: the file to which the server's output is appended.
        devices: the `CUDA_VISIBLE_DEVICES` of the server; `None` keeps the value of this process.
    """

    def __init__(self, command: list[str], url: str, log: Path, devices: str | None = None):
        self.command = command
        self.url = url
        self.log = log
        self.environment = dict(os.environ)
        # enables the endpoints that receive weights
        self.environment["VLLM_SERVER_DEV_MODE"] = "1"
        if "--enable-lora" in command:
            # enables the endpoints that load adapters
            self.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        # the server must not join the trainers' ranks; the last variable would override the cache
        # size in `command`
        for name in (*RANK_VARIABLES, "VLLM_CPU_KVCACHE_SPACE"):
            self.environment.pop(name, None)
        if devices is not None:
            self.environment["CUDA_VISIBLE_DEVICES"] = devices
        self.process: Any = None  # a `Popen` once the server is started

    def start(self) -> subprocess.Popen:
        """Start the server and return its process without waiting until it is ready.

        Raises:
            ValueError: if the server's address is already in use.
            OSError: if the log cannot be opened or the command cannot be run.
        """
        place = urlsplit(self.url)
        with (
            suppress(OSError),
            socket.create_connection((place.hostname, place.port or 80), PROBE_SECONDS),
        ):
            raise ValueError(
                f"a server is already running at {self.url}. Stop it, or set another port in "
                "vllm_server_port (in vllm_server_base_url, if that is set)."
            )
        return self._launch()

    def _launch(self) -> subprocess.Popen:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(
                self.command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        return self.process

    def wait_ready(self, seconds: float) -> None:
        """Wait until the started server is healthy.

        Raises:
            EngineFailure: if the server exits, or is not ready within `seconds`; the message
                contains the end of the log.
        """
        end = time.monotonic() + seconds
        while not answers(self.url):
            code = self.process.poll()
            if code is not None:
                raise EngineFailure(
                    f"The vLLM server exited with code {code}:\n{self.last_lines()}"
                )
            if time.monotonic() > end:
                raise EngineFailure(
                    f"The vLLM server was not ready within {seconds:g} s. If it is still loading, "
                    f"raise vllm_server_timeout. The end of its log:\n{self.last_lines()}"
                )
            time.sleep(0.5)

    def stop(self) -> None:
        """Stop the server, then kill all of its processes that are left.

        The server has 20 s to stop by itself. Do nothing if the server was not started.
        """
        if self.process is None:
            return
        _signal_all(self.process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        _signal_all(self.process, signal.SIGKILL)  # also processes that outlive the server
        self.process.wait()

    def last_lines(self, number: int = 15) -> str:
        """Return the last `number` lines of the log, followed by a line with its path."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([*lines[-number:], f"({self.log})"])

    @contextmanager
    def running(self, seconds: float, restarts: int) -> Iterator[None]:
        """Context manager that runs the server and restarts it if it exits within the block.

        Args:
            seconds: time limit of the first start.
            restarts: maximum number of restarts. If the server exits after the last of them, it
                stays down, and no error is raised.

        Raises:
            ValueError: if the server's address is already in use.
            OSError: if the log cannot be opened or the command cannot be run.
            EngineFailure: if the server exits or is not ready in time when it is first started.
        """
        done = threading.Event()
        self.start()
        keeper = threading.Thread(target=self._keep, args=(done, restarts), daemon=True)
        try:
            self.wait_ready(seconds)
            keeper.start()
            yield
        finally:
            done.set()
            if keeper.is_alive():
                keeper.join()
            self.stop()

    def _keep(self, done: threading.Event, restarts: int) -> None:
        for number in range(1, restarts + 1):
            while self.process.poll() is None:
                if done.wait(0.5):
                    return
            print(
                f"The vLLM server exited with code {self.process.returncode}; restarting it "
                f"({number} of {restarts}). Its log is {self.log}.",
                flush=True,
            )
            self.stop()
            self._launch()


def _signal_all(process: subprocess.Popen, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def answers(url: str) -> bool:
    """Return whether a healthy vLLM server answers at `url`.

    If a key is set in the environment, the server must also accept it.
    """
    try:
        return bool(who_answers(VllmLine(PROBE_SECONDS), url))
    except ConnectionError:
        return False


def server_of(recipe: Recipe, num_processes: int = 1, local_only: bool = False) -> Server:
    """Return the `Server` for a recipe, without starting it.

    Args:
        recipe: a recipe with `use_vllm: true` and `vllm_mode: server`.
        num_processes: number of training processes.
        local_only: whether to read only files that are already on this machine.

    Raises:
        ValueError: if the recipe uses no server, the model cannot be served on this CPU, the LoRA
            rank is too large for vLLM, or other machines could reach the server without a key.
        OSError: if the server runs on a CPU and the model's config cannot be read.
    """
    v = recipe.flat
    if not v["use_vllm"] or v["vllm_mode"] != "server":
        raise ValueError(
            "this recipe uses no vLLM server. Set `use_vllm: true` and `vllm_mode: server`."
        )
    check_reach(server_url(v))
    model = None
    devices = v["vllm_server_devices"]
    if v["use_cpu"] or not gpu_is_there():
        model = model_on_cpu(v, local_only)
        devices = None
    completions = batch_of(v, num_processes).completions
    command = server_command(v, model, completions)
    log = recipe.output_dir.expanduser() / LOG
    return Server(command, server_url(v), log, devices)


def model_on_cpu(v: Values, local_only: bool) -> TextModel:
    """Read the model's dimensions from its config, without loading the model.

    Args:
        v: the recipe's values.
        local_only: whether to read only files that are already on this machine.

    Raises:
        OSError: if the config is missing or cannot be read.
        ValueError: if transformers rejects the config, for example because the model type is
            unknown.
    """
    from transformers import AutoConfig

    name = v["model_name_or_path"]
    try:
        config = AutoConfig.from_pretrained(
            name,
            revision=v["model_revision"],
            trust_remote_code=bool(v["trust_remote_code"]),
            local_files_only=local_only,
        )
    except OSError:
        if not local_only or Path(name).is_dir():
            raise
        revision = v["model_revision"]
        option = "" if revision in (None, "main") else f" --revision {revision}"
        raise OSError(
            f"the config of {name} is not on this machine, but the size of the server's cache "
            f"depends on it. Run `hf download {name} config.json{option}`."
        ) from None
    except ValueError as error:
        raise ValueError(f"the config of {name} cannot be used: {error}") from None
    return TextModel.of(config)


def check_reach(url: str) -> None:
    """Check that a key is set if other machines can reach the server.

    Without a key, the server would accept weights and adapters from anyone who can reach it. If a
    key is set, log a warning that requests and responses are not encrypted.

    Raises:
        ValueError: if other machines can reach the server and no key is set.
    """
    host = urlsplit(url).hostname or ""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if is_local:
        return
    if not os.environ.get(KEY):
        raise ValueError(
            f"anyone who can reach {host} could send the server weights and adapters, and run code "
            f"with them. Set {KEY} to a secret in the environment of the server and the trainers, "
            "or use 127.0.0.1 as the host in vllm_server_host or vllm_server_base_url."
        )
    logger.warning(
        f"The vLLM server will listen on {host}. Requests and responses are signed with {KEY} but "
        "not encrypted, so anyone on the network can read them."
    )


def trainer_devices(recipe: Recipe) -> dict[str, str]:
    """Return environment variables that limit the trainers to GPUs that the server does not use.

    The result is empty if training runs on a CPU.

    Raises:
        ValueError: if `vllm_server_devices` names no GPUs, or leaves none for the trainers.
    """
    if recipe.flat["use_cpu"] or not gpu_is_there():
        return {}
    server_gpus = names_in(recipe.flat["vllm_server_devices"] or "")
    trainer_gpus = [name for name in visible_gpus() if name not in server_gpus]
    if not server_gpus or not trainer_gpus:
        raise ValueError(
            "vllm_server_devices must name the server's GPUs, such as '1', and leave the trainers "
            f"at least one of the GPUs {', '.join(visible_gpus())}. With a single GPU, set "
            "`vllm_mode: colocate` instead."
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(trainer_gpus)}


def names_in(devices: str) -> list[str]:
    """Split a comma-separated string into names without surrounding spaces; skip empty names."""
    names = [name.strip() for name in devices.split(",")]
    return [name for name in names if name]


def visible_gpus() -> list[str]:
    """Return the ids of the GPUs that this process may use, as strings.

    They come from `CUDA_VISIBLE_DEVICES` or, if it is not set, from the device files in `/dev`.
    """
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices is not None:
        return names_in(devices)
    device_files = sorted(Path("/dev").glob("nvidia[0-9]*"))
    return [path.name.removeprefix("nvidia") for path in device_files]
