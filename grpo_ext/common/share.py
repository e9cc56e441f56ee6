"""A share of things, chosen by a hash, so that the same ones are chosen in every run and process."""

from hashlib import blake2b


def in_share(key: str, share: float) -> bool:
    """Whether `key` is among the share, 0 to 1; all of a smaller share are also in a larger one."""
    digest = blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
