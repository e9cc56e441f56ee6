"""What is optimised, as functions of tensors: log-probs of the sampling policy, policy terms, KL, aggregation, advantages.

Nothing here knows a trainer. Read a file beside the paper that its docstrings name.
"""
