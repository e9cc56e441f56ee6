"""The trainer's line to a vLLM server: it never waits for ever, and knows whether the server has the weights it was given.

TRL's client does the talking. Where a request fails, `ServerClient` keeps the cause and answers with nothing instead of
raising on the one rank that talks; `OurVLLM` tells all ranks.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests
import torch
from requests.adapters import HTTPAdapter
from trl.generation.vllm_client import VLLMClient

from grpo_ext.vllm.transfer import WeightGroup, own_address

PROBE_SECONDS = 5.0  # that a healthy server may take to say so
GROUP_SECONDS = 120.0  # that the workers may take to join, and one tensor to travel
NOTHING: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "logprobs": None, "logprob_token_ids": None}


class TimedSession(requests.Session):
    """A session whose requests end after `seconds`, and are not sent again: the caller knows what to do first."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds
        for scheme in ("http://", "https://"):
            self.mount(scheme, HTTPAdapter(pool_maxsize=64))

    def request(self, method: Any, url: Any, *args: Any, **kwargs: Any) -> requests.Response:
        kwargs["timeout"] = kwargs.get("timeout") or (PROBE_SECONDS, self.seconds)
        return super().request(method, url, *args, **kwargs)


class ServerClient(VLLMClient):
    """As TRL's, but a failed generation or weight update leaves `failure` set and does nothing until `reconnect()`.

    Args:
        request_timeout: seconds that an answer may take; the others are TRL's.

    Attributes:
        failure: what went wrong, `None` where nothing did.
        refused: whether the server answered that the request was wrong, so that asking again is of no use.
    """

    communicator: Any

    def __init__(self, *args: Any, request_timeout: float, **kwargs: Any):
        self.failure: str | None = None
        self.refused = False
        self._run, self._updates, self._joins = uuid.uuid4().hex[:12], 0, 0
        self._version: str | None = None  # of the weights that the server must have
        super().__init__(*args, **kwargs)
        self.session.close()
        self.session = TimedSession(request_timeout)

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = 1.0) -> None:
        """Wait until the server says that it is healthy.

        Raises:
            ConnectionError: with the last cause, after `total_timeout` seconds.
        """
        end = time.monotonic() + total_timeout
        while True:
            try:
                status = requests.get(f"{self.base_url}/health", timeout=PROBE_SECONDS).status_code
                if status == 200:
                    return
                cause = f"it answers with status {status}"
            except requests.RequestException as error:
                cause = short(error)
            if time.monotonic() >= end:
                raise ConnectionError(f"no vLLM server was up at {self.base_url} within {total_timeout:g} s ({cause})")
            time.sleep(retry_interval)

    def get_server_info(self) -> dict[str, Any]:
        """The configuration that the server runs with. TRL 1.15's client does not ask for it.

        Raises:
            RuntimeError: if the server does not tell it.
        """
        answer = self.session.get(f"{self.base_url}/server_info", params={"config_format": "json"})
        if answer.status_code == 404:
            raise RuntimeError(
                f"The vLLM server at {self.base_url} takes no weights as it runs. Start it with `grpo-ext serve`, or with "
                "VLLM_SERVER_DEV_MODE=1 in its environment."
            )
        if answer.status_code != 200:
            raise RuntimeError(f"Request failed: {answer.status_code}, {answer.text}")
        return answer.json()["vllm_config"]

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        """Join the server's workers, by gloo where that is what they have, else as TRL does."""
        self._device = device
        config = self.get_server_info()["weight_transfer_config"]
        if config is not None and config["backend"] == "gloo":
            self._join_by_gloo()
        elif torch.device(device).type == "cpu":
            raise ValueError(
                f"The vLLM server at {self.base_url} cannot take weights from a CPU. Start it with `grpo-ext serve`, or with "
                """--weight-transfer-config '{"backend": "gloo"}'."""
            )
        else:
            super().init_communicator(device)

    def _join_by_gloo(self) -> None:
        place: dict[str, Any] = {"address": own_address(str(self.host)), "port": self.group_port + self._joins}
        place["seconds"] = GROUP_SECONDS
        self._joins += 1  # another port each time: the last one may not be free yet
        ranks = self.get_world_size() + 1
        with ThreadPoolExecutor(max_workers=1) as pool:
            joined = pool.submit(
                self._post,
                f"{self.base_url}/init_weight_transfer_engine",
                json={"init_info": {**place, "first_rank": 1, "world_size": ranks}},
            )
            self.communicator = WeightGroup(rank=0, world_size=ranks, **place)
            joined.result()

    def update_named_params(
        self, metadata: list[tuple[str, str, list[int]]], named_params: Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        send = self._send_by_gloo if isinstance(self.communicator, WeightGroup) else super().update_named_params
        self._attempt(lambda: send(metadata, named_params))
        for (
            _
        ) in named_params:  # to its end after a failure, too: other ranks gather along, an adapter is taken out again
            pass

    def _send_by_gloo(self, metadata: Any, named_params: Any) -> None:
        names, dtype_names, shapes = (list(field) for field in zip(*metadata, strict=True))
        update = {"names": names, "dtype_names": dtype_names, "shapes": shapes}
        self._start_weight_update()
        with ThreadPoolExecutor(max_workers=1) as pool:
            loaded = pool.submit(self._post, f"{self.base_url}/update_weights", json={"update_info": update})
            for _, tensor in named_params:
                self.communicator.broadcast(tensor.detach().cpu().contiguous())
            loaded.result()
        self._finish_weight_update()

    def _finish_weight_update(self) -> None:
        self._updates += 1
        version = f"{self._run}-{self._updates}"
        self._post(f"{self.base_url}/finish_weight_update", json={"weight_version": version})
        self._version = version

    def reset_prefix_cache(self) -> None:
        self._attempt(super().reset_prefix_cache)

    def generate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        generate = super().generate
        return self._attempt(lambda: generate(*args, **kwargs)) or NOTHING

    def reconnect(self, seconds: float) -> None:
        """Find a server again within `seconds` and join its workers; where that fails, `failure` is set anew."""
        self.failure, self.refused, self._version = None, False, None
        self._attempt(lambda: self._connect(seconds))

    def _connect(self, seconds: float) -> None:
        self.close_communicator()
        self.check_server(seconds)
        self.init_communicator(self._device)

    def close_communicator(self) -> None:
        if isinstance(self.communicator, WeightGroup):
            self.communicator = None
        else:
            super().close_communicator()

    def _attempt(self, work: Callable[[], Any]) -> Any:
        """What `work()` gives, while nothing has failed and the server has the weights that it was given."""
        if self.failure is not None:
            return None
        try:
            self._check_weights()
            answer = work()
            self._check_weights()
            return answer
        except Exception as error:  # requests' own, gloo's RuntimeError, TRL's bare Exception for a bad status
            self.failure, self.refused = short(error), str(error).startswith("Request failed: 4")
            return None

    def _check_weights(self) -> None:
        """`ConnectionError` if the server has other weights than it was given, having been started anew."""
        if self._version is None:
            return
        answer = self.session.get(f"{self.base_url}/weight_info", timeout=PROBE_SECONDS)
        if answer.status_code == 200 and answer.json()["weight_version"] != self._version:
            raise ConnectionError("it was started anew, or another run gave it weights")


def short(error: Exception) -> str:
    """An error in one line that can be read."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
