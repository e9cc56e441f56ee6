"""Samplers complete prompts with transformers, vLLM, or the user's own function.

A sampler takes weights and a request, and returns a `Generation`. It has no access to rewards,
groups or losses.
"""
