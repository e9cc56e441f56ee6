"""Run a model's programs in isolation and judge them by tests with hidden answers."""
