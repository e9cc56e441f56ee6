"""Tiny models, tokenizers, data and an optimizer, for training on a CPU in minutes."""
