"""Run a model's programs in isolation, and test them without showing them the expected results."""
