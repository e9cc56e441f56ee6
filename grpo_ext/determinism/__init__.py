"""Computations whose result for a token does not depend on the other tokens of the batch.

`deterministic: true` samples and scores with them, so that both compute the same bits. Imports only
torch, so that every room may use it.
"""
