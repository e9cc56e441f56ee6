"""The HTTP client of the reward `judge`: which servers get a key, and how replies are read."""

import ipaddress
import os
import re
import time
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasPath, BaseModel, Field

from grpo_ext.common.http import Line
from grpo_ext.common.untrusted import SERVER_NAME, check_server_url

MAX_REPLY = 2**20  # bytes
PAUSE = 0.5  # seconds before the first retry; each further pause is twice as long
# The environment variables with the keys of known services. Any other server gets a key only
# through `api_key_env`.
KEYS_OF_SERVICES = {"api.openai.com": "OPENAI_API_KEY"}

ServerUrl = Annotated[str, AfterValidator(check_server_url)]
# Upper case only, so that most keys pasted in place of a variable's name are refused.
VariableName = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]{0,99}$")]


class Reply(BaseModel):
    """The fields of a chat completion that are used."""

    text: str | None = Field(validation_alias=AliasPath("choices", 0, "message", "content"))
    finish_reason: str | None = Field(
        None, validation_alias=AliasPath("choices", 0, "finish_reason")
    )
    tokens: int = Field(0, validation_alias=AliasPath("usage", "total_tokens"), ge=0, le=2**31)


def key_headers(url: str, api_key_env: str | None) -> dict[str, str]:
    """Return the headers that authenticate requests to `url`; `{}` if no key is sent.

    The key is in the environment variable `api_key_env`. If that is `None`, a service in
    `KEYS_OF_SERVICES` gets the key in its variable, but only over https on port 443.

    Raises:
        ValueError: if the key would travel in clear text to another machine, is not set, or has
            characters that a header cannot contain. No message contains a key.
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
            "Write an https URL."
        )
    key = os.environ.get(variable, "")
    if not re.fullmatch(r"[!-~]+", key):
        source = "that api_key_env names" if api_key_env else variable
        raise ValueError(
            f"The environment variable {source} has no usable key: it is unset, empty, or "
            "contains whitespace or characters other than ASCII. Set it to the API key."
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
        body: the request, as JSON.
        url: the base URL, to which `/chat/completions` is appended.
        seconds: the time limit of all attempts together.
        headers: the headers of the request. If there are any, errors do not quote the server.

    Raises:
        ConnectionError: if the server refuses the request or does not respond in time.
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
            if not headers:  # a server that has a key can repeat it
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
    """Return the name of the first model that the server at `url` lists; send no key.

    Raises:
        ConnectionError: if the server does not respond.
        ValueError: if `url` is not the URL of a server, the server requires a key, or the response
            is not a list of models with plain names.
    """
    check_server_url(url)
    answer = Line(10.0, most=MAX_REPLY).get(f"{url.rstrip('/')}/models")
    if answer.status_code in (401, 403):
        raise ValueError(
            f"{url} requires an API key, which is not sent here. Write the reward `judge` into the "
            "recipe yourself, with url, model and api_key_env."
        )
    try:
        return answer.read_as(_Models).data[0].id
    except ValueError as error:
        raise ValueError(
            f"The response of {url}/models (status {answer.status_code}) is not a list of models "
            f"with plain names ({error}). Write the base URL of an OpenAI-compatible server, such "
            "as http://127.0.0.1:8000/v1."
        ) from None
