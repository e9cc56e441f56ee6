"""The part of the reward `code` inside the sandbox; it imports only the standard library."""
