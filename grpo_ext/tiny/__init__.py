"""Tiny models, tokenizers, data and an optimizer, with which the demo and the tests train on a CPU in minutes."""
