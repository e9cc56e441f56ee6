"""Environments: worlds that answer the model's turns.

An episode is one list of tokens, of which the model wrote some.
"""
