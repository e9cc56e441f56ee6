"""Operations whose result for a token does not depend on the rest of the batch.

`deterministic: true` uses them both for sampling and for scoring, so that the log-probs of the two
are bitwise equal.
This package imports only torch, so that all other packages may use it.
"""
