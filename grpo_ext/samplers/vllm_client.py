"""The trainer's client for a vLLM server.

Each request has a time limit. The client checks that the server still has the trainer's weights,
and rejects completions that do not match the request.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from typing import Any

import torch

from grpo_ext.common.http import MOST_BYTES
from grpo_ext.objective.kept import KeptSet
from grpo_ext.samplers.base import Request
from grpo_ext.samplers.daemon_threads import map_in_daemons
from grpo_ext.samplers.server_connection import ServerConnection
from grpo_ext.samplers.vllm_token_route import Answer, answer_of, request_of, sampling_params
from grpo_ext.vllm.check_completions import completions_fault
from grpo_ext.vllm.http import GENERATE, PROBE_SECONDS

TOKEN_BYTES = 512  # maximum size of one token in a response: its text, id and log-prob
KEPT_BYTES = 9  # maximum size of the id of a kept token in a response
MAX_REQUESTS = 64  # concurrent requests of one generation, if each prompt is a request
Prompts = list[str] | list[list[int]]
Features = list[dict | None] | None
NOTHING: Answer = {
    "prompt_ids": [],
    "completion_ids": [],
    "logprobs": None,
    "logprob_token_ids": None,
}


class ServerClient(ServerConnection):
    """A client that requests completions from a vLLM server and checks them.

    Args:
        args: the positional arguments of TRL's client.
        vocabulary: number of tokens in the model's vocabulary.
        kwargs: the keyword arguments of `ServerConnection`.
    """

    def __init__(self, *args: Any, vocabulary: int, **kwargs: Any):
        # whether the next call of `generate` starts its request without waiting for the response
        self.starts = False
        self.seconds = 0.0
        # whether completions come with the tokens that truncation kept; see `ask_for_kept`
        self.returns_kept = False
        self.kept: list[KeptSet] | None = None  # of the completions returned last
        self._answer: Future[Answer] | None = None  # the response to the request in flight
        self._dropped: Future[Answer] | None = None  # a response that is no longer wanted
        self._vocabulary = vocabulary
        super().__init__(*args, **kwargs)

    def ask_for_kept(self) -> None:
        """Switch all later requests to a route that also returns the tokens that truncation kept.

        Raises:
            ValueError: if the server does not have this route.
            ConnectionError: if the server does not answer.
        """
        answer = self._line.ask("POST", self.base_url + GENERATE, b"{}", PROBE_SECONDS)
        # without the route, vLLM returns 404, or 403 from 0.33 on; with it, vLLM rejects `{}`
        if answer.status_code in (403, 404):
            raise ValueError(
                f"The vLLM server at {self.base_url} does not have the route {GENERATE}, which "
                "returns the tokens that truncation kept. Start the server with `grpo-ext serve`, "
                "or with --enable-scale-out."
            )
        self.returns_kept = True

    def update_named_params(
        self,
        metadata: list[tuple[str, str, list[int]]],
        named_params: Iterator[tuple[str, torch.Tensor]],
    ) -> None:
        self._await_dropped()
        super().update_named_params(metadata, named_params)

    def image_features(self, images: list, *args: Any, **kwargs: Any) -> list:
        features = super().image_features
        answer = self._attempt(lambda: features(images, *args, **kwargs))
        return answer or [None] * len(images)

    # TRL passes all options as keyword arguments
    def generate(  # type: ignore[override]
        self, prompts: Prompts, features: Features = None, n: int = 1, **sampling: Any
    ) -> Answer:
        """Return completions in the format of TRL's client, or `NOTHING` if the request fails.

        The reason for a failure is stored in `failure`.

        If `returns_kept` is `True`, the key `kept` holds the tokens that truncation kept, as a
        `KeptSet` for each completion. The attribute `kept` has them, too.

        If `starts` is `True`, the call only starts the request, in a thread, resets `starts` to
        `False`, and returns `NOTHING`. The next call waits for this request, returns its
        completions, and ignores its own arguments.

        Each call first waits for the response that `drop_answer` discarded, if there is one.

        Args:
            prompts: strings or lists of token ids.
            features: image data of each prompt; `None` if there are no images.
            n: number of completions per prompt.
            sampling: other options of TRL's `generate`.
        """
        self._await_dropped()
        if self._answer is not None:
            answer = self._answer.result()
            self._answer = None
            self.kept = answer.get("kept")
            return answer
        if not self.starts:
            answer = self._timed_completions(prompts, features, n, sampling)
            self.kept = answer.get("kept")
            return answer
        self.starts = False
        future: Future[Answer] = Future()
        self._answer = future

        def answer_future() -> None:
            future.set_result(self._timed_completions(prompts, features, n, sampling))

        # a daemon, so that a hung server does not delay the end of the run
        Thread(target=answer_future, daemon=True).start()
        return NOTHING

    def drop_answer(self) -> None:
        """Discard the response to the request in flight, if any.

        The next generation or update of the server's weights or adapter first waits for this
        response.
        """
        self._dropped = self._answer or self._dropped
        self._answer = None
        self.starts = False

    def _await_dropped(self) -> None:
        if self._dropped is not None:
            self._dropped.result()
            self._dropped = None

    def _timed_completions(
        self,
        prompts: Prompts,
        features: Features,
        n: int,
        sampling: dict[str, Any],
    ) -> Answer:
        start = time.monotonic()
        answer = self._attempt(lambda: self._limited_completions(prompts, features, n, sampling))
        self.seconds = time.monotonic() - start
        return answer or NOTHING

    def _limited_completions(
        self,
        prompts: Prompts,
        features: Features,
        n: int,
        sampling: dict[str, Any],
    ) -> Answer:
        """Return completions; raise `ConnectionError` if a response is too large for the request.

        The arguments are those of `generate`.
        """
        generation_kwargs = sampling.get("generation_kwargs") or {}
        settings = {"max_tokens": 16, "logprobs": 0, **sampling, **generation_kwargs}
        max_tokens = settings["max_tokens"]
        if not max_tokens:
            max_tokens = self.get_server_info()["model_config"]["max_model_len"]
        num_logprobs = None
        if settings["logprobs"] is not None:
            num_logprobs = settings["logprobs"] + 1
        num_tokens = n * (sum(map(len, prompts)) + len(prompts) * max_tokens)
        num_kept = self._num_kept(settings)
        with self._size_limit(num_tokens, num_logprobs or 1, num_kept):
            return self._checked_completions(
                prompts,
                features,
                n,
                max_tokens,
                num_logprobs,
                sampling,
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
        """Return completions; raise `ConnectionError` if they do not match the request.

        Args:
            prompts: strings or lists of token ids.
            features: image data of each prompt; `None` if there are no images.
            n: number of completions per prompt.
            max_tokens: maximum length of a completion.
            num_logprobs: maximum number of log-probs per token; `None` if none were requested.
            sampling: other options of TRL's `generate`.
        """
        has_kept = self.returns_kept
        try:
            if has_kept or features is not None:
                answer = self._by_token_route(prompts, features, n, sampling)
            else:
                answer = super().generate(prompts, features, n, **sampling)
            fault = completions_fault(
                answer,
                prompts,
                n,
                max_tokens,
                num_logprobs,
                self._vocabulary,
                has_kept,
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            fault = f"they do not have vLLM's format ({type(error).__name__})"
        if fault:
            raise ConnectionError(f"the server's completions do not match the request: {fault}")
        if has_kept:
            kept_ids = answer.pop("kept_ids")
            answer["kept"] = [KeptSet.from_ids(ids or [], self._vocabulary) for ids in kept_ids]
        return answer

    def _by_token_route(
        self,
        prompts: Any,
        features: Features,
        n: int,
        sampling: dict[str, Any],
    ) -> Answer:
        """Request completions through the route `GENERATE`, with one request for each prompt.

        The arguments are those of `generate`.
        """
        params = sampling_params(n, sampling)

        def send(i: int) -> dict[str, Any]:
            image = None if features is None else features[i]
            body = request_of(self.model, prompts[i], image, params)
            return self._post(self.base_url + GENERATE, json=body)

        responses = map_in_daemons(send, range(len(prompts)), MAX_REQUESTS)
        return answer_of(prompts, responses)

    def _num_kept(self, settings: dict[str, Any]) -> int:
        """Return how many kept tokens a response may contain per position, not counting ties."""
        return settings.get("top_k", 0) if self.returns_kept else 0

    @contextmanager
    def _size_limit(
        self, num_tokens: int, num_logprobs: int = 1, num_kept: int = 0
    ) -> Iterator[None]:
        """Context manager that raises the size limit of responses, and resets it on exit.

        Args:
            num_tokens: maximum number of tokens in a response.
            num_logprobs: maximum number of log-probs per token.
            num_kept: maximum number of kept tokens per position.
        """
        token_bytes = num_logprobs * TOKEN_BYTES + num_kept * KEPT_BYTES
        self._line.most = MOST_BYTES + num_tokens * token_bytes
        try:
            yield
        finally:
            self._line.most = MOST_BYTES

    # ---- episodes, whose turns are requested by many threads

    def room_for(self, request: Request, sampling: dict[str, Any]) -> AbstractContextManager[None]:
        """Return a context manager that raises the size limit of responses to fit the longest turn.

        The limit allows for as many tokens, prompt included, as any of the episodes can reach.

        Args:
            request: a request with episodes.
            sampling: the sampling options of the requests for turns.
        """
        num_tokens = 0
        for ids, episode in zip(request.prompt_ids, request.episodes, strict=True):
            num_tokens = max(num_tokens, len(ids) + episode.room)
        settings = {**sampling, **(sampling["generation_kwargs"] or {})}
        return self._size_limit(num_tokens, num_kept=self._num_kept(settings))

    def complete(
        self,
        ids: list[int],
        version: str | None,
        max_tokens: int,
        **sampling: Any,
    ) -> Answer:
        """Request one completion after a list of tokens. Can be called from several threads.

        Args:
            ids: the token ids of the context.
            version: the version of the weights that the server must have; `None` allows any.
            max_tokens: maximum length of the completion.
            sampling: other options of TRL's `generate`; `logprobs` is required. Entries `n`,
                `max_tokens` and `logprobs` of `generation_kwargs` are ignored.

        Returns:
            The completion in the format of `generate`, with log-probs and, if `returns_kept` is
            `True`, kept tokens.

        Raises:
            ConnectionError: if the completion does not match the request, or the server has other
                weights.
            Exception: any other error that the request raises.
        """
        generation_kwargs = dict(sampling.pop("generation_kwargs") or {})
        for name in ("n", "max_tokens", "logprobs"):
            generation_kwargs.pop(name, None)
        sampling |= {"max_tokens": max_tokens, "generation_kwargs": generation_kwargs}
        num_logprobs = sampling["logprobs"] + 1
        answer = self._checked_completions([ids], None, 1, max_tokens, num_logprobs, sampling)
        self._check_weights(version, self._line.seconds)
        return answer
