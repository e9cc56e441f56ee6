"""Samplers, which complete prompts with transformers, vLLM, or the user's own function.

A sampler receives weights and a request, and returns a `Generation`. It does not compute rewards or
losses.
"""
