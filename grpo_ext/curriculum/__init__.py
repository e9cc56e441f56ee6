"""Choose training prompts by difficulty or pass rate, and compute the metrics of groups."""
