"""Pure functions that decide which rows run together, and how wide, to compute the same gradient
with less work.
"""
