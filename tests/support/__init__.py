"""What several tests, hunts and benchmarks share: tiny models and runs, oracles, hostile input, processes."""
