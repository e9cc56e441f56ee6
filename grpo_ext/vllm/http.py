"""HTTP requests to a server that may not be vLLM, with limits on time, size and format.

`VllmLine` replaces the `requests.Session` of TRL's client. That session limits only the time of a
single read from the socket, so a server that sends byte by byte could keep it waiting indefinitely.
With a key, requests are signed and responses are verified; the key itself is never sent.
"""

import os
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, StrictInt
from typing_extensions import TypedDict

from grpo_ext.common.http import Answer, Line, target_of
from grpo_ext.common.untrusted import SERVER_NAME
from grpo_ext.vllm.signature import KEY, PROOF, SIGNATURE, WINDOW, Signature, is_proof

PROBE_SECONDS = 5.0  # time limit of a health check


def shape(**fields: Any) -> Any:
    """Return a type for JSON objects with at least these fields, given as name=type."""
    return TypedDict("Shape", fields)  # type: ignore[operator]  # created at run time


Name = Annotated[str, Field(pattern=SERVER_NAME)]
MODEL = shape(
    dtype=Name,
    logprobs_mode=Name,
    max_model_len=int,
    return_sampling_mask=NotRequired[bool],  # from vLLM 0.28 on
)
TRANSFER = shape(backend=Name) | None
LORA = shape(max_lora_rank=int) | None
GENERATE = "/inference/v1/generate"  # completes a list of tokens
# vLLM up to 0.31 identifies the token with a string, and from 0.32 on with its id
LOGPROB = shape(logprob=float, token=NotRequired[str], token_id=NotRequired[StrictInt])
CHOICE = shape(
    token_ids=list[StrictInt],
    logprobs=shape(content=list[LOGPROB]) | None,  # type: ignore[valid-type]
    sampling_mask=NotRequired[list[list[StrictInt]] | None],
)
SHAPES = {
    "/version": shape(version=Name),
    "/v1/models": shape(
        data=Annotated[list[shape(id=Name)], Field(min_length=1)]  # type: ignore[misc]
    ),
    "/server_info": shape(
        vllm_config=shape(model_config=MODEL, weight_transfer_config=TRANSFER, lora_config=LORA)
    ),
    "/get_world_size": shape(world_size=Annotated[int, Field(ge=1, le=2**16)]),
    "/weight_info": shape(weight_version=str | None),
    GENERATE: shape(choices=list[CHOICE]),  # type: ignore[valid-type]
}


class VllmAnswer(Answer):
    """A response with those attributes of `requests.Response` that TRL uses."""

    def json(self) -> Any:
        """Return the JSON object in the body.

        Raises:
            ConnectionError: if the body is not a JSON object, or does not match the type in
                `SHAPES` for the path of the request.
        """
        form: Any = dict[str, Any]
        for path, shape_of_path in SHAPES.items():
            if self.path.endswith(path):
                form = shape_of_path
        try:
            return self.read_as(form)
        except ValueError as error:
            raise ConnectionError(
                f"the response to {self.path} does not have vLLM's format ({error})"
            ) from None


@dataclass
class VllmLine(Line):
    """An HTTP client for a vLLM server; with a key, it signs requests and verifies responses.

    The key is taken from the environment variable `VLLM_API_KEY` by default. The proof in a
    response is valid only for that response to that request.
    """

    key: str | None = field(default_factory=lambda: os.environ.get(KEY), repr=False)

    def ask(
        self,
        method: str,
        url: str,
        body: bytes | None,
        seconds: float,
        **headers: str,
    ) -> VllmAnswer:
        """Send a request and return the response, whatever its status.

        With a key, the request is signed, and the proof in the response is verified.

        Args:
            method: the HTTP method, such as `"GET"`.
            url: the URL of the request.
            body: the content of the request; `None` sends no content.
            seconds: time limit of the request.
            headers: further headers.

        Raises:
            ConnectionError: if no complete response arrives in time or, with a key, if the proof is
                missing or wrong, or the server rejects the timestamp of the request.
        """
        if not self.key:
            unverified = super().ask(method, url, body, seconds, **headers)
            return VllmAnswer(**vars(unverified))
        signature = Signature.of(self.key, method, target_of(url), body or b"")
        headers = {**headers, SIGNATURE: str(signature)}
        answer = VllmAnswer(**vars(super().ask(method, url, body, seconds, **headers)))
        host = urlsplit(url).netloc.rpartition("@")[2]
        proof = answer.headers.get(PROOF, "")
        if not is_proof(proof, self.key, signature, answer.status_code, answer.body):
            raise ConnectionError(
                f"{host}: the server does not have the key in {KEY}. Start the server with "
                "`grpo-ext serve` and the same key"
            )
        if answer.status_code == 401:
            fault = clock_fault(answer)
            if fault is not None:
                raise ConnectionError(f"{host}: {fault}")
        return answer


class Clock(BaseModel):
    """The body of the response to a request that a server rejects because of its timestamp.

    Both fields are in seconds since 1970.
    """

    server_clock: int  # the server's time when it responded
    server_started: int  # the server's time when it started


def clock_fault(answer: Answer) -> str | None:
    """Explain a 401 response to a request whose timestamp the server rejected.

    Return `None` if the 401 has another cause, that is, if the body of `answer` is not a `Clock`.
    The caller must already have verified the proof of `answer`; without it, the body could be
    forged.
    """
    try:
        clock = answer.read_as(Clock)
    except ValueError:
        return None
    now = int(time.time())
    difference = clock.server_clock - now
    if abs(difference) > WINDOW:
        return (
            f"the server's clock differs by {difference:+d} s from the clock of this machine, but "
            f"may differ by at most {WINDOW} s. Synchronize the clocks"
        )
    wait = max(1, clock.server_started - now)
    return (
        "the server rejects requests that were signed before its start, and its clock differs by "
        f"{difference:+d} s from the clock of this machine. Synchronize the clocks, or wait "
        f"{wait} s"
    )


def who_answers(line: VllmLine, base: str) -> str:
    """Return the version and model of the vLLM server at `base`, such as "0.31.0 with NAME".

    Raises:
        ConnectionError: if no server answers, or the server is not healthy, is not vLLM, or rejects
            the key.
    """
    answers = {}
    for path in ("/health", "/version", "/v1/models"):
        seconds = min(line.seconds, PROBE_SECONDS)
        answer = line.ask("GET", base + path, None, seconds)
        if answer.status_code == 401:
            raise ConnectionError(f"{path} returned status 401. Set {KEY} to the key of the server")
        if answer.status_code != 200:
            raise ConnectionError(f"{path} returned status {answer.status_code}")
        answers[path] = answer
    version = answers["/version"].json()["version"]
    models = answers["/v1/models"].json()["data"]
    return f"{version} with {models[0]['id']}"
