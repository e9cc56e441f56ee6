"""Less work for the same gradient: which rows run together, and how wide. Pure functions on tensors."""
