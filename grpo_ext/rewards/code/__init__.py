"""Run programs written by a model in isolation, and test them without the expected results."""
