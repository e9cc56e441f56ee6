"""HTTP client for the reward `judge`: sends the API key, retries requests and parses replies."""

import ipaddress
import os
import re
import time
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasPath, BaseModel, Field

from grpo_ext.common.http import Line
from grpo_ext.common.untrusted import SERVER_NAME, check_server_url

MAX_REPLY = 2**20  # maximum size of a reply, in bytes
PAUSE = 0.5  # seconds before the first retry; each further pause is twice as long
# By host, the environment variable that holds the API key of a known service. Any other server gets
# a key only if `api_key_env` is set.
KEYS_OF_SERVICES = {"api.openai.com": "OPENAI_API_KEY"}

ServerUrl = Annotated[str, AfterValidator(check_server_url)]
# Upper case only, so that most API keys that are pasted in place of a name are rejected.
VariableName = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]{0,99}$")]


class Reply(BaseModel):
    """The parts of a chat completion response that the reward uses.

    Attributes:
        text: the content of the first choice's message; `None` if the server sends null.
        finish_reason: why the first choice ended; `None` if it is missing or null.
        tokens: the number of tokens in the prompt and the reply; 0 if it is missing.
    """

    text: str | None = Field(validation_alias=AliasPath("choices", 0, "message", "content"))
    finish_reason: str | None = Field(
        None, validation_alias=AliasPath("choices", 0, "finish_reason")
    )
    tokens: int = Field(0, validation_alias=AliasPath("usage", "total_tokens"), ge=0, le=2**31)


def key_headers(url: str, api_key_env: str | None) -> dict[str, str]:
    """Return the headers that authenticate requests to `url`; `{}` if no key is sent.

    Args:
        url: the URL of the server.
        api_key_env: the name of the environment variable that holds the key. If it is `None`, a
            host in `KEYS_OF_SERVICES` gets the key from the variable listed there, but only over
            https on port 443, and any other server gets no key.

    Raises:
        ValueError: if the key would be sent in clear text to another machine, or if the variable is
            unset, empty, or contains whitespace or characters other than printable ASCII. The
            message does not contain the key.
    """
    place = urlsplit(url)
    variable = api_key_env
    if variable is None and place.scheme == "https" and place.port in (None, 443):
        variable = KEYS_OF_SERVICES.get(place.hostname or "")
    if variable is None:
        return {}
    if place.scheme != "https" and not is_loopback(place.hostname or ""):
        raise ValueError(
            f"api_key_env: http would send the key in clear text to {place.hostname}. "
            "Use an https URL."
        )
    key = os.environ.get(variable, "")
    if not re.fullmatch(r"[!-~]+", key):
        source = "that api_key_env names" if api_key_env else variable
        raise ValueError(
            f"The environment variable {source} has no usable key: it is unset, empty, or "
            "contains whitespace or characters other than printable ASCII. Set it to the API key."
        )
    return {"Authorization": f"Bearer {key}"}


def is_loopback(host: str) -> bool:
    """Return whether a URL's host is this machine: `localhost` or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ask(body: dict[str, Any], *, url: str, seconds: float, headers: dict[str, str]) -> Reply:
    """Request a chat completion and return it; retry while the server is busy or unreachable.

    Args:
        body: the body of the request, which is sent as JSON.
        url: the base URL, to which `/chat/completions` is appended.
        seconds: the time limit for all attempts together.
        headers: the headers from `key_headers`. If there are any, error messages do not quote the
            server's response, because a server that was sent a key could repeat it.

    Raises:
        ConnectionError: if the server rejects the request, or no attempt succeeds in time.
        ValueError: if the response is not a chat completion.
    """
    end = time.monotonic() + seconds
    pause = PAUSE
    while True:
        try:
            line = Line(max(0.01, end - time.monotonic()), most=MAX_REPLY, headers=headers)
            answer = line.post(f"{url.rstrip('/')}/chat/completions", json=body)
            if answer.status_code == 200:
                return answer.read_as(Reply)
            cause = f"{url}: status {answer.status_code}"
            if not headers:  # a server that was sent a key could repeat it
                cause += f": {answer.text}"
            may_succeed = answer.status_code in (408, 429) or answer.status_code >= 500
        except ValueError as error:
            raise ValueError(f"{url}: the reply is not a chat completion: {error}") from None
        except ConnectionError as error:
            cause = str(error)
            may_succeed = True
        if not may_succeed or time.monotonic() + pause >= end:
            raise ConnectionError(cause)
        time.sleep(pause)
        pause *= 2


class _Model(BaseModel):
    id: Annotated[str, Field(pattern=SERVER_NAME)]


class _Models(BaseModel):
    data: Annotated[list[_Model], Field(min_length=1)]


def model_at(url: str) -> str:
    """Return the name of the first model that the server at `url` lists; no API key is sent.

    Args:
        url: the base URL, to which `/models` is appended.

    Raises:
        ConnectionError: if the server cannot be reached, or does not respond within 10 seconds.
        ValueError: if `url` is not a valid server URL, the server requires a key, or the response
            is not a list of models whose names match `SERVER_NAME`.
    """
    check_server_url(url)
    answer = Line(10.0, most=MAX_REPLY).get(f"{url.rstrip('/')}/models")
    if answer.status_code in (401, 403):
        raise ValueError(
            f"{url} requires an API key, but this command does not send one. Add the reward "
            "`judge` to the recipe yourself, with url, model and api_key_env."
        )
    try:
        return answer.read_as(_Models).data[0].id
    except ValueError as error:
        raise ValueError(
            f"The response of {url}/models (status {answer.status_code}) is not a list of models "
            f"with plain names ({error}). Pass the base URL of an OpenAI-compatible server, such "
            "as http://127.0.0.1:8000/v1."
        ) from None
