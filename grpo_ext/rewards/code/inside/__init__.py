"""The part of the reward `code` that runs in the sandbox; it needs only the standard library."""
