"""Evaluation on held-out rows: completions, their scores by the rewards of a run, figures with
standard errors.
"""
