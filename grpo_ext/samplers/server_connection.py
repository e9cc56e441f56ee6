"""The trainer's connection to a vLLM server, and the transfer of weights.

Failures of weight updates and of requests for completions are stored and not raised, because often
only one rank makes requests, and `OurVLLM` must first inform all ranks.
"""

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from trl.generation.vllm_client import VLLMClient

from grpo_ext.common.http import Answer
from grpo_ext.samplers.server_failure import ServerFailure
from grpo_ext.vllm.http import PROBE_SECONDS, VllmLine, who_answers
from grpo_ext.vllm.weight_group import WeightGroup, listening_store, own_address

Result = TypeVar("Result")


class Session(VllmLine):
    """The HTTP session for TRL's client; raises `StatusError` unless the status is 200, 404 or 405.

    TRL has its own messages for 404 and 405.
    """

    def get(self, *args: Any, **kwargs: Any) -> Answer:
        answer = super().get(*args, **kwargs)
        answer.raise_for_status(404, 405)
        return answer

    def post(self, *args: Any, **kwargs: Any) -> Answer:
        answer = super().post(*args, **kwargs)
        answer.raise_for_status(404, 405)
        return answer


class ServerConnection(VLLMClient):
    """Like TRL's client, but some methods store failures in `failure` instead of raising them.

    These are the methods for weight updates and cache resets, `reconnect` and, in `ServerClient`,
    `generate` and `image_features`. After a failure, none of them contacts the server until
    `reconnect` is called.

    Args:
        args: the positional arguments of TRL's client.
        request_timeout: time limit of a request, in seconds.
        kwargs: the keyword arguments of TRL's client.
    """

    communicator: Any
    session: Any

    def __init__(self, *args: Any, request_timeout: float, **kwargs: Any):
        self.failure: ServerFailure | None = None
        self.version: str | None = None  # version of the weights that the server must have
        self._line = Session(request_timeout)
        super().__init__(*args, **kwargs)

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = 1.0) -> None:
        """Wait until a healthy vLLM server answers.

        Args:
            total_timeout: the maximum time to wait, in seconds.
            retry_interval: the time between two attempts, in seconds.

        Raises:
            ConnectionError: if no server is ready in time; the message contains the last error.
        """
        self.session = self._line  # replaces the session that TRL has just created
        end = time.monotonic() + total_timeout
        while True:
            try:
                who_answers(self._line, self.base_url)
                return
            except ConnectionError as error:
                if time.monotonic() >= end:
                    raise ConnectionError(
                        f"no vLLM server was ready at {self.base_url} within {total_timeout:g} s. "
                        "If none is running, start one with `grpo-ext serve`. The last error: "
                        f"{error}"
                    ) from None
            time.sleep(retry_interval)

    def _get(self, url: str, **options: Any) -> dict[str, Any]:
        """Send a GET request and return the JSON object in the response.

        Raises:
            StatusError: if the status is not 200.
            ConnectionError: if there is no complete response in vLLM's format.
        """
        answer = self.session.get(url, **options)
        answer.raise_for_status()
        return answer.json()

    def _post(self, url: str, **options: Any) -> dict[str, Any]:
        """Send a POST request and return the JSON object in the response.

        Raises:
            StatusError: if the status is not 200.
            ConnectionError: if there is no complete response in vLLM's format.
        """
        answer = self.session.post(url, **options)
        answer.raise_for_status()
        return answer.json()

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        """Join a process group with the server's workers.

        If the workers use gloo, the group uses gloo, too; otherwise, TRL's client creates it.

        Args:
            device: the trainer's device.

        Raises:
            ValueError: if `device` is a CPU and the workers do not use gloo.
            ConnectionError: if a request fails, or if none of the ports from `group_port` on can be
                opened.
            RuntimeError: if the server does not expose vLLM's development endpoints, or if its
                workers do not join in time.
        """
        self._device = device
        config = self.get_server_info()["weight_transfer_config"]
        if config is not None and config["backend"] == "gloo":
            self._join_by_gloo()
        elif torch.device(device).type == "cpu":
            raise ValueError(
                f"The vLLM server at {self.base_url} cannot receive weights from a CPU. Start the "
                "server with `grpo-ext serve`, or with "
                """--weight-transfer-config '{"backend": "gloo"}'."""
            )
        else:
            super().init_communicator(device)

    def _join_by_gloo(self) -> None:
        address = own_address(str(self.host))
        world_size = self.get_world_size() + 1
        # the store must listen before the workers connect to it
        store = listening_store(address, self.group_port, world_size)
        init_info = {"address": address, "port": store.port, "world_size": world_size}
        url = f"{self.base_url}/init_weight_transfer_engine"
        with ThreadPoolExecutor(max_workers=1) as pool:
            workers_join = pool.submit(self._post, url, json={"init_info": init_info})
            self.communicator = WeightGroup(store, address, 0, world_size)
            workers_join.result()

    def update_named_params(
        self,
        metadata: list[tuple[str, str, list[int]]],
        named_params: Iterator[tuple[str, torch.Tensor]],
    ) -> None:
        send = super().update_named_params
        if isinstance(self.communicator, WeightGroup):
            send = self._send_by_gloo
        self._attempt(lambda: send(metadata, named_params))
        # exhaust the iterator even after a failure: other ranks gather together with this one, and
        # at its end the iterator unmerges the adapter
        deque(named_params, maxlen=0)

    def _send_by_gloo(
        self,
        metadata: list[tuple[str, str, list[int]]],
        named_params: Iterator[tuple[str, torch.Tensor]],
    ) -> None:
        names, dtype_names, shapes = map(list, zip(*metadata, strict=True))
        update_info = {"names": names, "dtype_names": dtype_names, "shapes": shapes}
        url = f"{self.base_url}/update_weights"
        self._start_weight_update()
        with ThreadPoolExecutor(max_workers=1) as pool:
            workers_load = pool.submit(self._post, url, json={"update_info": update_info})
            for _, tensor in named_params:
                self.communicator.broadcast(tensor.detach().cpu().contiguous())
            workers_load.result()
        self._finish_weight_update()

    def _finish_weight_update(self) -> None:
        version = uuid.uuid4().hex
        self._post(f"{self.base_url}/finish_weight_update", json={"weight_version": version})
        self.version = version

    def reset_prefix_cache(self) -> None:
        self._attempt(super().reset_prefix_cache)

    def failed(self, failure: ServerFailure | None) -> None:
        """Store `failure`; if it is `None`, check that the server has the trainer's weights.

        If the check fails, the reason is stored in the attribute `failure`. An earlier failure is
        not replaced. If the argument is a rejected request, but no vLLM server answers any more, a
        connection failure is stored instead.
        """
        self.failure = self.failure or self._confirmed(failure)
        self._attempt(lambda: None)

    def reconnect(self, seconds: float) -> None:
        """Wait up to `seconds` for the server, and reconnect to its workers for weight transfer.

        An earlier `failure` is cleared first. If the attempt fails, the reason is stored there.
        """
        self.failure = None
        self.version = None
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

    def _attempt(self, request: Callable[[], Result]) -> Result | None:
        """Return the result of `request()`; on failure, store the failure and return `None`.

        If the server does not have the trainer's weights, this is stored as a failure, too. After
        an earlier failure, `request` is not called.
        """
        if self.failure is not None:
            return None
        try:
            self._check_weights(self.version)
            answer = request()
            self._check_weights(self.version)
            return answer
        # a connection error, or a RuntimeError of gloo
        except Exception as error:
            self.failure = self._confirmed(ServerFailure.of(error))
            return None

    def _confirmed(self, failure: ServerFailure | None) -> ServerFailure | None:
        """Return `failure`; replace a rejection with a connection failure if no server answers.

        Unlike a rejected request, a failed connection is retried.
        """
        if failure is not None and failure.refused:
            try:
                who_answers(self._line, self.base_url)
            except ConnectionError as error:
                return ServerFailure.of(error)
        return failure

    def _check_weights(self, version: str | None, seconds: float = PROBE_SECONDS) -> None:
        """Raise `ConnectionError` if the server does not have the version `version` of the weights.

        Nothing is checked if `version` is `None` or the server has no route `/weight_info`. The
        request has a time limit of `seconds`.
        """
        if version is None:
            return
        answer = self._line.ask("GET", f"{self.base_url}/weight_info", None, seconds)
        if answer.status_code != 404 and answer.json()["weight_version"] != version:
            raise ConnectionError(
                "the server was restarted, or another run sent it weights (each run needs its own "
                "server)"
            )
