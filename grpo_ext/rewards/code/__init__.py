"""Run a model's programs in isolation and judge them by tests whose answers they cannot read."""
