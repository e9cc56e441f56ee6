"""Environments: games and tools that answer the model's turns.

An episode is one sequence of tokens. The model samples some of them; the others are the
environment's answers, with the tokens that the chat template puts around them.
"""
