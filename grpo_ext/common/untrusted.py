"""Make untrusted text safe to show and save, and keep secrets out of saved data."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

# Model names, versions and ids that a server may send: a fixed alphabet, at most 200 characters.
SERVER_NAME = r"^[A-Za-z0-9._/:@+-]{1,200}$"
# Keys of a recipe and options of a reward whose values are never shown or saved.
_SECRET = re.compile(
    r"(?i)^(?:.*[_-])?(?:(?:api|access|private|secret)[_-]?key|password|passwd|secret"
    r"|(?:hub|auth|access)[_-]token)$|^token$"
)
# Matches only strings that consist of a URL, so that prose containing a URL stays unchanged.
_USER_INFO = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)[^/\s?#]*@(?=\S*$)")


def printable(text: object) -> str:
    """Return `str(text)` for a terminal: unprintable characters except `\\n` are escaped."""
    return "\n".join(map(one_line, str(text).split("\n")))


def one_line(text: object) -> str:
    """Return `str(text)` on one line: line breaks and other unprintable characters are escaped."""
    characters = []
    for character in str(text):
        if not character.isprintable():
            character = ascii(character).strip("'")
        characters.append(character)
    return "".join(characters)


def first_line(text: object) -> str:
    """Return the first line of `str(text)`, for example to shorten a library's error message."""
    return str(text).partition("\n")[0]


def check_server_url(url: str, *, path: str = "/v1") -> str:
    """Check the URL of a server, and return it unchanged.

    Args:
        url: the URL.
        path: the path of the example URLs in the error message.

    Raises:
        ValueError: if the scheme is not http or https, the host is missing, the port or a character
            is invalid, or the URL contains a query, a fragment or an `@` (as after a user name or a
            password). The message does not quote the URL.
    """
    try:
        place = urlsplit(url)
        is_http = place.scheme in ("http", "https")
        readable = is_http and bool(place.hostname) and place.port != 0
    except ValueError:
        readable = False
    if not readable or not re.fullmatch(r"[!-~]+", url):
        raise ValueError(
            f"expected a URL such as http://127.0.0.1:8000{path} or https://HOST{path}"
        )
    if "@" in url or place.query or place.fragment:
        raise ValueError(
            "the URL must not contain a user name, a password, a query or a fragment, because "
            "recipes, logs and reports show it"
        )
    return url


def is_secret(name: str) -> bool:
    """Return whether a key or option has the name of a secret, such as `api_key` or `hub_token`."""
    return _SECRET.fullmatch(name) is not None


def without_secrets(value: Any) -> Any:
    """Return a copy of plain data without secret mapping entries and without credentials in URLs.

    An entry is secret if `is_secret` is true for its key. A URL is recognized only if it is the
    whole string. Tuples become lists.
    """
    if isinstance(value, Mapping):
        public = {}
        for key, entry in value.items():
            if not (isinstance(key, str) and is_secret(key)):
                public[key] = without_secrets(entry)
        return public
    if isinstance(value, list | tuple):
        return [without_secrets(entry) for entry in value]
    if isinstance(value, str):
        return _USER_INFO.sub(r"\1", value)
    return value
