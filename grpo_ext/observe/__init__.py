"""The logs of a run, its health monitor, and the report."""
