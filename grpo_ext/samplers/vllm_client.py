"""The trainer's client of a vLLM server.

It waits a limited time, checks that the server still has the trainer's weights, and accepts only
the completions that it requested.

It is based on TRL's client. If a request fails, `ServerClient` stores the cause and returns
nothing, instead of an error on the one rank that makes requests; `OurVLLM` then informs all ranks.
"""

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from typing import Any, TypeVar

import torch
from trl.generation.vllm_client import VLLMClient

from grpo_ext.common.http import MOST_BYTES
from grpo_ext.common.http import Answer as HttpAnswer
from grpo_ext.samplers.base import Request
from grpo_ext.samplers.server_failure import ServerFailure
from grpo_ext.vllm.check_completions import completions_fault
from grpo_ext.vllm.http import PROBE_SECONDS, VllmLine, who_answers
from grpo_ext.vllm.weight_group import WeightGroup, listening_store, own_address

TOKEN_BYTES = 512  # the maximum size of one token of an answer: its text, number and log-prob
Prompts = list[str] | list[list[int]]
Features = list[dict | None] | None
Answer = dict[str, Any]  # completions in TRL's form
NOTHING: Answer = {
    "prompt_ids": [],
    "completion_ids": [],
    "logprobs": None,
    "logprob_token_ids": None,
}
Result = TypeVar("Result")


class Session(VllmLine):
    """The session of TRL's client, whose own error for a bad status does not carry the status.

    Here a bad status raises a `StatusError`, except 404 and 405, after which TRL says what the
    server lacks.
    """

    def get(self, *args: Any, **kwargs: Any) -> HttpAnswer:
        answer = super().get(*args, **kwargs)
        answer.raise_for_status(404, 405)
        return answer

    def post(self, *args: Any, **kwargs: Any) -> HttpAnswer:
        answer = super().post(*args, **kwargs)
        answer.raise_for_status(404, 405)
        return answer


class ServerClient(VLLMClient):
    """As TRL's, but errors are stored.

    After a failed generation or weight update `failure` is set, and requests do nothing until
    `reconnect()`.

    Args:
        args: as TRL's.
        request_timeout: time limit of an answer, in seconds.
        vocabulary: number of tokens.
        kwargs: as TRL's.
    """

    communicator: Any
    session: Any

    def __init__(self, *args: Any, request_timeout: float, vocabulary: int, **kwargs: Any):
        self.failure: ServerFailure | None = None
        self.starts = False
        self.seconds = 0.0
        self._answer: Future[Answer] | None = None  # to the request under way
        self._dropped: Future[Answer] | None = None  # to one that nobody waits for
        self.version: str | None = None  # of the weights that the server must have
        self._line = Session(request_timeout)
        self._vocabulary = vocabulary
        super().__init__(*args, **kwargs)

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = 1.0) -> None:
        """Wait for a healthy vLLM server.

        After `total_timeout` seconds raise a `ConnectionError` with the last cause.
        """
        self.session = self._line  # replaces the session that TRL has just made
        end = time.monotonic() + total_timeout
        while True:
            try:
                who_answers(self._line, self.base_url)
                return
            except ConnectionError as error:
                if time.monotonic() >= end:
                    raise ConnectionError(
                        f"no vLLM server was up at {self.base_url} within {total_timeout:g} s "
                        f"({error})"
                    ) from None
            time.sleep(retry_interval)

    def _get(self, url: str, **options: Any) -> dict[str, Any]:
        """Return the JSON object of the answer; `StatusError` for a bad status."""
        answer = self.session.get(url, **options)
        answer.raise_for_status()
        return answer.json()

    def _post(self, url: str, **options: Any) -> dict[str, Any]:
        """As `_get`."""
        answer = self.session.post(url, **options)
        answer.raise_for_status()
        return answer.json()

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        """Join the workers of the server, by gloo if they use it, else as TRL does."""
        self._device = device
        config = self.get_server_info()["weight_transfer_config"]
        if config is not None and config["backend"] == "gloo":
            self._join_by_gloo()
        elif torch.device(device).type == "cpu":
            raise ValueError(
                f"The vLLM server at {self.base_url} cannot take weights from a CPU. Start it "
                "with `grpo-ext serve`, or with "
                """--weight-transfer-config '{"backend": "gloo"}'."""
            )
        else:
            super().init_communicator(device)

    def _join_by_gloo(self) -> None:
        address = own_address(str(self.host))
        world_size = self.get_world_size() + 1
        # before the workers look for it
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
        self._await_dropped()
        send = super().update_named_params
        if isinstance(self.communicator, WeightGroup):
            send = self._send_by_gloo
        self._attempt(lambda: send(metadata, named_params))
        # exhaust the iterator also after a failure: other ranks gather with this one, and it
        # unmerges the adapter at its end
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

    def image_features(self, images: list, *args: Any, **kwargs: Any) -> list:
        features = super().image_features
        return self._attempt(lambda: features(images, *args, **kwargs)) or [None] * len(images)

    # TRL passes all options by name
    def generate(  # type: ignore[override]
        self, prompts: Prompts, features: Features = None, n: int = 1, **sampling: Any
    ) -> Answer:
        """As TRL's if the answer contains the requested completions; else `NOTHING`.

        With `starts` set, send the request in a thread and return `NOTHING`; the next call returns
        its answer.

        Args:
            prompts: texts or lists of tokens.
            features: image data of each prompt.
            n: completions of each prompt.
            sampling: further options of TRL's.
        """
        self._await_dropped()
        if self._answer is not None:
            answer = self._answer.result()
            self._answer = None
            return answer
        if not self.starts:
            return self._timed_completions(prompts, features, n, sampling)
        self.starts = False
        future: Future[Answer] = Future()
        self._answer = future

        def answer_future() -> None:
            future.set_result(self._timed_completions(prompts, features, n, sampling))

        # a daemon, so that a hung server does not delay the end of the run
        Thread(target=answer_future, daemon=True).start()
        return NOTHING

    def drop_answer(self) -> None:
        """Forget the request under way; the next one waits until the server has answered it."""
        self._dropped = self._answer or self._dropped
        self._answer = None
        self.starts = False

    def _await_dropped(self) -> None:
        if self._dropped is not None:
            self._dropped.result()
            self._dropped = None

    def _timed_completions(
        self, prompts: Prompts, features: Features, n: int, sampling: dict[str, Any]
    ) -> Answer:
        start = time.monotonic()
        answer = self._attempt(lambda: self._limited_completions(prompts, features, n, sampling))
        self.seconds = time.monotonic() - start
        return answer or NOTHING

    def _limited_completions(
        self, prompts: Prompts, features: Features, n: int, sampling: dict[str, Any]
    ) -> Answer:
        """Return completions, from an answer that is no larger than they can be."""
        generation_kwargs = sampling.get("generation_kwargs") or {}
        settings = {"max_tokens": 16, "logprobs": 0, **sampling, **generation_kwargs}
        max_tokens = settings["max_tokens"]
        if not max_tokens:
            max_tokens = self.get_server_info()["model_config"]["max_model_len"]
        num_logprobs = None
        if settings["logprobs"] is not None:
            num_logprobs = settings["logprobs"] + 1
        num_tokens = n * (sum(map(len, prompts)) + len(prompts) * max_tokens)
        with self._size_limit(num_tokens * (num_logprobs or 1)):
            return self._checked_completions(
                prompts, features, n, max_tokens, num_logprobs, sampling
            )

    def _checked_completions(
        self,
        prompts: Prompts,
        features: Features,
        n: int,
        max_tokens: int,
        num_logprobs: int | None,
        sampling: dict[str, Any],
    ) -> Answer:
        """Return completions; `ConnectionError` if they are not what was requested."""
        try:
            answer = super().generate(prompts, features, n, **sampling)
            fault = completions_fault(
                answer, prompts, n, max_tokens, num_logprobs, self._vocabulary
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            fault = f"they do not have vLLM's format ({type(error).__name__})"
        if fault:
            raise ConnectionError(f"the answer is not what was asked for: {fault}")
        return answer

    @contextmanager
    def _size_limit(self, num_tokens: int) -> Iterator[None]:
        """Within the context, accept answers of up to so many tokens."""
        self._line.most = MOST_BYTES + num_tokens * TOKEN_BYTES
        try:
            yield
        finally:
            self._line.most = MOST_BYTES

    # ---- episodes, whose turns are requested by many threads

    def room_for(self, request: Request) -> AbstractContextManager[None]:
        """Within the context, accept the answer to any single turn of a request's episodes."""
        num_tokens = 0
        for ids, episode in zip(request.prompt_ids, request.episodes, strict=True):
            num_tokens = max(num_tokens, len(ids) + episode.room)
        return self._size_limit(num_tokens)

    def complete(
        self, ids: list[int], version: str | None, max_tokens: int, **sampling: Any
    ) -> Answer:
        """Complete a list of tokens once.

        Args:
            ids: of the context.
            version: of the weights that the server must have.
            max_tokens: maximum length of the completion.
            sampling: further options of `generate`.

        Returns:
            One completion, with log-probs.

        Raises:
            Exception: whatever the request raises.
        """
        generation_kwargs = dict(sampling.pop("generation_kwargs") or {})
        for name in ("n", "max_tokens", "logprobs"):
            generation_kwargs.pop(name, None)
        sampling |= {"max_tokens": max_tokens, "generation_kwargs": generation_kwargs}
        num_logprobs = sampling["logprobs"] + 1
        answer = self._checked_completions([ids], None, 1, max_tokens, num_logprobs, sampling)
        self._check_weights(version, self._line.seconds)
        return answer

    def failed(self, failure: ServerFailure | None) -> None:
        """Record why the server failed, if it did, or that its weights are not the trainer's."""
        self.failure = self.failure or self._confirmed(failure)
        self._attempt(lambda: None)

    def reconnect(self, seconds: float) -> None:
        """Find a server within `seconds` and join its workers; if that fails, set `failure`."""
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
        """Return the result of `request()`; `None` after a failure.

        It is also a failure if the server does not have the trainer's weights.
        """
        if self.failure is not None:
            return None
        try:
            self._check_weights(self.version)
            answer = request()
            self._check_weights(self.version)
            return answer
        # of the connection, or a RuntimeError of gloo
        except Exception as error:
            self.failure = self._confirmed(ServerFailure.of(error))
            return None

    def _confirmed(self, failure: ServerFailure | None) -> ServerFailure | None:
        """Return a failure, or instead of a refusal why no vLLM server answers any more."""
        if failure is not None and failure.refused:
            try:
                who_answers(self._line, self.base_url)
            except ConnectionError as error:
                return ServerFailure.of(error)
        return failure

    def _check_weights(self, version: str | None, seconds: float = PROBE_SECONDS) -> None:
        """Raise a `ConnectionError` if the server has weights of another version."""
        if version is None:
            return
        answer = self._line.ask("GET", f"{self.base_url}/weight_info", None, seconds)
        if answer.status_code != 404 and answer.json()["weight_version"] != version:
            raise ConnectionError("it was restarted, or another run gave it weights")
