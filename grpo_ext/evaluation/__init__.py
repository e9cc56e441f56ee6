"""Evaluation on held-out rows: completions, rewards, and figures with standard errors."""
