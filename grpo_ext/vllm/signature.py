"""Signatures for requests and proofs for responses between trainers and a vLLM server.

Both sides share a key, which is never sent. A request carries a signature: an HMAC-SHA256 (RFC
2104) of its method, path and query, body, time and a random number. A response carries a proof: an
HMAC of the request's signature and of the response's status and body. A request therefore cannot be
changed or replayed, and a response cannot be changed or passed off as the response to another
request.
"""

import hashlib
import hmac
import json
import re
import secrets
import time
from dataclasses import dataclass
from typing import Self

KEY = "VLLM_API_KEY"  # vLLM's environment variable for the key that trainers and server share
SIGNATURE = "x-grpo-ext-signature"  # header of a request
PROOF = "x-grpo-ext-proof"  # header of a response
WINDOW = 300  # seconds by which the clocks of the trainer and the server may differ


@dataclass(frozen=True)
class Signature:
    """The signature of a request; the fields are in the same order as in the header."""

    seconds: int  # since 1970, by the trainer's clock
    nonce: str  # a random number, so that no two signatures are equal
    size: int  # number of bytes in the body
    body: str  # SHA-256 of the body
    mac: str  # HMAC of the other fields and of the request's method and target

    @classmethod
    def of(cls, key: str, method: str, target: str, body: bytes) -> Self:
        """Create the signature of a request.

        Args:
            key: the key that trainer and server share.
            method: the HTTP method of the request, such as `"POST"`.
            target: the path and query of the request.
            body: the content of the request.
        """
        seconds = int(time.time())
        nonce = secrets.token_hex(16)
        digest = hashlib.sha256(body).hexdigest()
        mac = mac_of(key, "request", method, target, seconds, nonce, len(body), digest)
        return cls(seconds, nonce, len(body), digest, mac)

    @classmethod
    def parse(cls, header: str) -> Self | None:
        """Parse the value of a signature header; return `None` if it is malformed."""
        form = r"([0-9]{1,12}) ([0-9a-f]{32}) ([0-9]{1,12}) ([0-9a-f]{64}) ([0-9a-f]{64})"
        match = re.fullmatch(form, header)
        if match is None:
            return None
        seconds, nonce, size, body, mac = match.groups()
        return cls(int(seconds), nonce, int(size), body, mac)

    def __str__(self) -> str:
        return f"{self.seconds} {self.nonce} {self.size} {self.body} {self.mac}"

    def signs(self, key: str, method: str, target: str) -> bool:
        """Return whether this signature was created with `key` for the given request.

        The time and the body are not checked; the caller must check both, or else old requests and
        other bodies would be accepted.

        Args:
            key: the key that trainer and server share.
            method: the HTTP method of the request.
            target: the path and query of the request.
        """
        fields = (self.seconds, self.nonce, self.size, self.body)
        mac = mac_of(key, "request", method, target, *fields)
        return hmac.compare_digest(self.mac, mac)


def proof_of(key: str, signature: Signature, status: int, body: bytes) -> str:
    """Return the proof with which a server shows that it has the key and sent this response.

    Args:
        key: the key that trainer and server share.
        signature: the signature of the request.
        status: the HTTP status of the response.
        body: the content of the response.
    """
    digest = hashlib.sha256(body).hexdigest()
    return mac_of(key, "answer", signature.mac, status, digest)


def is_proof(proof: str, key: str, signature: Signature, status: int, body: bytes) -> bool:
    """Return whether `proof` is valid for this response to a request.

    Args:
        proof: the proof in the header of the response.
        key: the key that trainer and server share.
        signature: the signature of the request.
        status: the HTTP status of the response.
        body: the content of the response.
    """
    expected_proof = proof_of(key, signature, status, body)
    return hmac.compare_digest(proof.encode(), expected_proof.encode())


def mac_of(key: str, *fields: str | int) -> str:
    """Return the HMAC-SHA256 of the fields, joined unambiguously as JSON, in hexadecimal."""
    message = json.dumps(fields).encode()
    key_bytes = key.encode(errors="surrogateescape")
    return hmac.new(key_bytes, message, hashlib.sha256).hexdigest()
