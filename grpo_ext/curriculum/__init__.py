"""Which prompts a step learns from: groups with signal, prompts of the right difficulty, and what becomes of the solved ones.

A group whose completions are all right, or all wrong, has no gradient. Pure functions and small stores of plain state; the
trainer puts them to use.
"""
