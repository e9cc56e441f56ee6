"""Evaluate models on held-out rows: completions, rewards, and metrics with standard errors."""
