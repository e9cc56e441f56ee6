"""Functions that compute the objective: log-probs, policy terms, KL, aggregation and advantages.

No module here imports a trainer, so the code can be read alongside the papers that it cites.
"""
