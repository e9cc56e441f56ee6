"""The objective as functions of tensors: log-probs, policy terms, KL, aggregation, advantages.

No module here imports a trainer. Each can be read alongside the papers that its docstrings cite.
"""
