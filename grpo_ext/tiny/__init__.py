"""Tiny models, tokenizers, data and an optimizer, for demos and tests that train on a CPU in minutes."""
