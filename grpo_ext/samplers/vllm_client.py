"""The trainer's client of a vLLM server: it waits a limited time, checks that the server still has
its weights, and takes only completions that it asked for.

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
from typing import Any

import torch
from trl.generation.vllm_client import VLLMClient

from grpo_ext.common.http import MOST_BYTES, Answer
from grpo_ext.samplers.base import Request
from grpo_ext.samplers.server_failure import ServerFailure
from grpo_ext.vllm.check_completions import completions_fault
from grpo_ext.vllm.http import PROBE_SECONDS, VllmLine, who_answers
from grpo_ext.vllm.weight_group import WeightGroup, listening_store, own_address

TOKEN_BYTES = 512  # the maximum size of one token of an answer: its text, number and log-prob
NOTHING: dict[str, Any] = {
    "prompt_ids": [],
    "completion_ids": [],
    "logprobs": None,
    "logprob_token_ids": None,
}


class Session(VllmLine):
    """The session of TRL's client, whose own error for a bad status is an `Exception` without the
    status.

    Here the answer raises a `StatusError`, except with 404 or 405, after which TRL says what the
    server lacks.
    """

    def get(self, *args: Any, **kwargs: Any) -> Answer:
        return _expected(super().get(*args, **kwargs))

    def post(self, *args: Any, **kwargs: Any) -> Answer:
        return _expected(super().post(*args, **kwargs))


def _expected(answer: Answer) -> Answer:
    answer.raise_for_status(404, 405)
    return answer


class ServerClient(VLLMClient):
    """As TRL's, but after a failed generation or weight update `failure` is set and requests do
    nothing until `reconnect()`.

    Additional arguments: `request_timeout`, the time limit of an answer in seconds, and
    `vocabulary`, the number of tokens.
    """

    communicator: Any
    session: Any

    def __init__(self, *args: Any, request_timeout: float, vocabulary: int, **kwargs: Any):
        self.failure: ServerFailure | None = None
        self.starts = False
        self.seconds = 0.0
        self._answer: Future[dict[str, Any]] | None = None  # to the request under way
        self._dropped: Future[dict[str, Any]] | None = None  # to one that nobody waits for
        self.version: str | None = None  # of the weights that the server must have
        self._line = Session(request_timeout)
        self._vocabulary = vocabulary
        super().__init__(*args, **kwargs)

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = 1.0) -> None:
        """Wait for a healthy vLLM server; raise `ConnectionError` with the last cause after
        `total_timeout` seconds.
        """
        self.session = self._line  # replaces the session that TRL has just made
        end = time.monotonic() + total_timeout
        while True:
            try:
                who_answers(self._line, self.base_url)
                return
            except ConnectionError as error:
                if time.monotonic() >= end:
                    words = (
                        f"no vLLM server was up at {self.base_url} within {total_timeout:g} s "
                        f"({error})"
                    )
                    raise ConnectionError(words) from None
            time.sleep(retry_interval)

    def _get(self, url: str, **options: Any) -> dict[str, Any]:
        """Return the object that the server answers with; `StatusError` for a bad status."""
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
        ranks = self.get_world_size() + 1
        store = listening_store(address, self.group_port, ranks)  # before the workers look for it
        body = {"init_info": {"address": address, "port": store.port, "world_size": ranks}}
        with ThreadPoolExecutor(max_workers=1) as pool:
            joined = pool.submit(
                self._post, f"{self.base_url}/init_weight_transfer_engine", json=body
            )
            self.communicator = WeightGroup(store, address, 0, ranks)
            joined.result()

    def update_named_params(
        self,
        metadata: list[tuple[str, str, list[int]]],
        named_params: Iterator[tuple[str, torch.Tensor]],
    ) -> None:
        self._await_dropped()
        send = (
            self._send_by_gloo
            if isinstance(self.communicator, WeightGroup)
            else super().update_named_params
        )
        self._attempt(lambda: send(metadata, named_params))
        # use up the iterator also after a failure: other ranks gather with us, and it unmerges the
        # adapter at its end
        deque(named_params, maxlen=0)

    def _send_by_gloo(self, metadata: Any, named_params: Any) -> None:
        update = dict(
            zip(
                ("names", "dtype_names", "shapes"),
                map(list, zip(*metadata, strict=True)),
                strict=True,
            )
        )
        self._start_weight_update()
        with ThreadPoolExecutor(max_workers=1) as pool:
            loaded = pool.submit(
                self._post, f"{self.base_url}/update_weights", json={"update_info": update}
            )
            for _, tensor in named_params:
                self.communicator.broadcast(tensor.detach().cpu().contiguous())
            loaded.result()
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
        self, prompts: Any, features: Any = None, n: int = 1, **sampling: Any
    ) -> dict[str, Any]:
        """As TRL's if the answer is what was asked for; else `NOTHING`.

        With `starts` set, send the request in a thread and return `NOTHING`; the next call returns
        its answer.
        """
        generate = super().generate
        self._await_dropped()
        if self._answer is not None:
            found = self._answer.result()
            self._answer = None
            return found

        def work() -> dict[str, Any]:
            start = time.monotonic()
            found = (
                self._attempt(lambda: self._checked(generate, prompts, features, n, sampling))
                or NOTHING
            )
            self.seconds = time.monotonic() - start
            return found

        if not self.starts:
            return work()
        answer: Future[dict[str, Any]] = Future()
        self.starts = False
        self._answer = answer
        Thread(
            target=lambda: answer.set_result(work()), daemon=True
        ).start()  # a hung server does not hold up the end
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

    def _checked(
        self, generate: Any, prompts: Any, features: Any, n: int, sampling: dict[str, Any]
    ) -> dict[str, Any]:
        given = {
            "max_tokens": 16,
            "logprobs": 0,
            **sampling,
            **(sampling.get("generation_kwargs") or {}),
        }
        longest = given["max_tokens"] or self.get_server_info()["model_config"]["max_model_len"]
        num_logprobs = None if given["logprobs"] is None else given["logprobs"] + 1
        with self._most(
            n * (sum(map(len, prompts)) + len(prompts) * longest) * (num_logprobs or 1)
        ):
            return self._asked(generate, prompts, features, n, longest, num_logprobs, sampling)

    def _asked(
        self,
        generate: Any,
        prompts: Any,
        features: Any,
        n: int,
        longest: int,
        num_logprobs: int | None,
        sampling: Any,
    ) -> dict[str, Any]:
        """Return completions from TRL's `generate`; `ConnectionError` if they are not what was
        requested.
        """
        try:
            found = generate(prompts, features, n, **sampling)
            wrong = completions_fault(found, prompts, n, longest, num_logprobs, self._vocabulary)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            wrong = f"they do not have vLLM's format ({type(error).__name__})"
        if wrong:
            raise ConnectionError(f"the answer is not what was asked for: {wrong}")
        return found

    @contextmanager
    def _most(self, tokens: int) -> Iterator[None]:
        """Within the context, accept answers of up to so many tokens."""
        self._line.most = MOST_BYTES + tokens * TOKEN_BYTES
        try:
            yield
        finally:
            self._line.most = MOST_BYTES

    # ---- episodes, whose turns are asked for by many threads

    def room_for(self, request: Request) -> AbstractContextManager[None]:
        """Within the context, accept the answer to any single turn of a request's episodes."""
        tokens = [
            len(ids) + e.room for ids, e in zip(request.prompt_ids, request.episodes, strict=True)
        ]
        return self._most(max(tokens, default=0))

    def complete(
        self, ids: list[int], version: str | None, max_tokens: int, **sampling: Any
    ) -> dict[str, Any]:
        """Return one completion of `ids` with log-probs, sampled by the weights of this version;
        raise any error.
        """
        own = {
            k: v
            for k, v in (sampling.pop("generation_kwargs") or {}).items()
            if k not in ("n", "max_tokens", "logprobs")
        }
        given = {"max_tokens": max_tokens, **sampling, "generation_kwargs": own}
        found = self._asked(
            super().generate, [ids], None, 1, max_tokens, given["logprobs"] + 1, given
        )
        self._check_weights(version, self._line.seconds)
        return found

    def failed(self, failure: ServerFailure | None) -> None:
        """Record why the server failed, if it did, or that it has other weights than the
        trainer's.
        """
        self.failure = self.failure or self._confirmed(failure)
        self._attempt(lambda: None)

    def reconnect(self, seconds: float) -> None:
        """Find a server within `seconds` and join its workers; if that fails, `failure` is set
        again.
        """
        self.failure = self.version = None
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
        """Return the result of `work()` if nothing has failed and the server has the trainer's
        weights; else `None`.
        """
        if self.failure is not None:
            return None
        try:
            self._check_weights(self.version)
            answer = work()
            self._check_weights(self.version)
            return answer
        # of the connection, or a RuntimeError of gloo
        except Exception as error:
            self.failure = self._confirmed(ServerFailure.of(error))
            return None

    def _confirmed(self, failure: ServerFailure | None) -> ServerFailure | None:
        """Return a failure, or that no vLLM server answers any more, in place of its refusal."""
        if failure is not None and failure.refused:
            try:
                who_answers(self._line, self.base_url)
            except ConnectionError as error:
                return ServerFailure.of(error)
        return failure

    def _check_weights(self, version: str | None, seconds: float = PROBE_SECONDS) -> None:
        """Raise a `ConnectionError` if the server has other weights than those of this version,
        because it was restarted.
        """
        if version is None:
            return
        answer = self._line.ask("GET", f"{self.base_url}/weight_info", None, seconds)
        if answer.status_code != 404 and answer.json()["weight_version"] != version:
            raise ConnectionError("it was restarted, or another run gave it weights")
