"""Select a fraction of keys by a hash, identically in every run and process."""

from hashlib import blake2b


def in_share(key: str, share: float) -> bool:
    """Return whether `key` belongs to a share (0 to 1); larger shares contain smaller ones."""
    digest = blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
