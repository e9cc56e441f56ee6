"""Programs of a model, run in isolation and judged by tests whose values they cannot read."""
