"""Pure functions that choose which rows run together, to compute the same gradient faster."""
