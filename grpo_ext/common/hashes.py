"""Hashes that are the same in every process and run, for ids of prompts and shares of keys."""

import json
from hashlib import blake2b


def in_share(key: str, share: float) -> bool:
    """Return whether the hash of `key` is in the lowest `share` (0 to 1) of all hashes.

    A key in one share is also in every larger one.
    """
    digest = blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def prompt_id(prompt: object) -> str:
    """Return a hash of a prompt in 12 hexadecimal digits, the same in every step and run."""
    text = json.dumps(prompt, ensure_ascii=True, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=6).hexdigest()
