"""Hashes that are the same in every process and run, to identify prompts and to sample keys."""

import json
from hashlib import blake2b

NUM_HASHES = 2**64  # number of possible values of `number_of`


def number_of(key: str) -> int:
    """Return the hash of `key` as a number from 0 to `NUM_HASHES` - 1."""
    digest = blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def in_share(key: str, share: float) -> bool:
    """Return whether the hash of `key` is in the lowest `share` (0 to 1) of all hashes.

    A key in one share is also in every larger one.
    """
    return number_of(key) < share * NUM_HASHES


def share_between(lowest: int, highest: int) -> float:
    """Return a share that includes the hash `lowest` but not `highest`, with few decimal digits.

    A share includes a hash if `in_share` is true for its key. The result has as few decimal digits
    as possible, but at least two, or is `highest / NUM_HASHES` if 16 digits are not enough.

    Args:
        lowest: a hash from `number_of`.
        highest: a larger hash.
    """
    for digits in range(2, 17):
        parts = 10**digits
        share = (lowest * parts // NUM_HASHES + 1) / parts
        if share * NUM_HASHES <= highest:
            return share
    return highest / NUM_HASHES


def prompt_id(prompt: object) -> str:
    """Return a hash of a prompt in 12 hexadecimal digits, the same in every step and run."""
    text = json.dumps(prompt, ensure_ascii=True, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=6).hexdigest()
