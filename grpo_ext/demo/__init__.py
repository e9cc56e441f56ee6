"""Demos of the whole job on a CPU: data, a tiny model, a warm start, GRPO, and the results."""
