"""Environments: games and tools that answer the model's turns.

An episode is one sequence of tokens: some were sampled by the model, the others are the
environment's answers.
"""
