"""Programs that a model writes, run in isolation and judged by tests whose expected values they
cannot read.
"""
