"""Samplers complete prompts with transformers, vLLM, or a function of the user.

A sampler returns a `Generation` and takes weights. It has no access to rewards, groups or losses.
"""
