"""HTTP requests to a server that may not be vLLM, with limits on the time, the size and the form of each answer.

`VllmLine` replaces the `requests.Session` of TRL's client, which limits only the time of a single read from the socket, and so
waits forever for a server that sends byte by byte.
"""

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from grpo_ext.common.http import Answer, Line

KEY = "VLLM_API_KEY"  # environment variable of vLLM with the key that trainers and server share
NONCE, PROOF = "x-grpo-ext-nonce", "x-grpo-ext-proof"
PROBE_SECONDS = 5.0  # time limit of a health check


def shape(**fields: Any) -> Any:
    """Return the type of a JSON object with at least these fields."""
    return TypedDict("Shape", fields)  # type: ignore[operator]  # made at run time


MODEL = shape(dtype=str, logprobs_mode=str, max_model_len=int)
TRANSFER, LORA = shape(backend=str) | None, shape(max_lora_rank=int) | None
SHAPES = {
    "/version": shape(version=str),
    "/v1/models": shape(data=Annotated[list[shape(id=str)], Field(min_length=1)]),  # type: ignore[misc]  # a call
    "/server_info": shape(
        vllm_config=shape(model_config=MODEL, weight_transfer_config=TRANSFER, lora_config=LORA)
    ),
    "/get_world_size": shape(world_size=Annotated[int, Field(ge=1, le=2**16)]),
    "/weight_info": shape(weight_version=str | None),
}


class VllmAnswer(Answer):
    """An answer with the attributes of `requests.Response` that TRL reads."""

    def json(self) -> Any:
        """Return the object in the answer; `ConnectionError` if it does not have vLLM's form."""
        kind = next(
            (kind for path, kind in SHAPES.items() if self.path.endswith(path)), dict[str, Any]
        )
        try:
            return TypeAdapter(kind).validate_json(self.body)
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, (self.path, *wrong["loc"])))
            raise ConnectionError(
                f"what answers is not vLLM: {where}: {wrong['msg'][:100]}"
            ) from None


@dataclass
class VllmLine(Line):
    """A client of a vLLM server, which must prove that it has the key."""

    key: str | None = field(default_factory=lambda: os.environ.get(KEY), repr=False)

    def ask(
        self, method: str, url: str, body: bytes | None, seconds: float, **headers: str
    ) -> VllmAnswer:
        nonce, place = secrets.token_hex(16), urlsplit(url)
        if self.key and not place.path.endswith(
            "/health"
        ):  # the first request, whose answer proves the key
            headers["Authorization"] = f"Bearer {self.key}"
        answer = VllmAnswer(
            **vars(super().ask(method, url, body, seconds, **headers, **{NONCE: nonce}))
        )
        if self.key and not hmac.compare_digest(
            answer.headers.get(PROOF, "").encode(), proof(self.key, nonce)
        ):
            wrong = f"what answers does not have the key of {KEY}: start it with `grpo-ext serve` and the same key"
            raise ConnectionError(f"{place.netloc.rpartition('@')[2]}: {wrong}")
        return answer


def proof(key: str, nonce: str) -> bytes:
    """Return the proof, for a nonce, that one has the key."""
    return hmac.new(key.encode(), nonce.encode(), hashlib.sha256).hexdigest().encode()


def who_answers(line: VllmLine, base: str) -> str:
    """Return the version of the vLLM server at `base` and its model, as "0.31.0 with NAME".

    `ConnectionError` if the server is not healthy, is not vLLM, or has another key.
    """
    found = []
    for path in ("/health", "/version", "/v1/models"):
        answer = line.ask("GET", base + path, None, min(line.seconds, PROBE_SECONDS))
        if answer.status_code != 200:
            hint = f": set {KEY} to the key of the server" if answer.status_code == 401 else ""
            raise ConnectionError(f"{path} answers with status {answer.status_code}{hint}")
        found.append(answer)
    return f"{found[1].json()['version']} with {found[2].json()['data'][0]['id']}"
