"""What several tests, hunts and benchmarks share.

Tiny models and runs, oracles, hostile input, processes.
"""
