"""Environments: worlds that answer the model's turns.

An episode is a single list of tokens, some of which the model wrote.
"""
