"""Samplers complete prompts: transformers' `generate`, vLLM inside the process or as a server, or a
function of the user.

A sampler returns a `Generation` and takes weights. It has no access to rewards, groups or losses.
"""
