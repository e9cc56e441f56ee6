"""Held-out evaluation: generate, score with the run's own rewards, summarise with standard errors."""
