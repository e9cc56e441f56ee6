"""Operations whose result for a token does not depend on the rest of the batch.

`deterministic: true` samples and scores with them, so that both compute bitwise equal log-probs.
This package imports only torch, so that all other packages may use it.
"""
