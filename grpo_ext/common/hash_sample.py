"""A choice of a share of things by a hash, the same in every run and process."""

from hashlib import blake2b


def in_share(key: str, share: float) -> bool:
    """Whether `key` is in the share, 0 to 1; a larger share contains every smaller one."""
    digest = blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
