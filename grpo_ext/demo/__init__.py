"""Complete demos on a CPU: data, a tiny model, a warm start, GRPO, and the results."""
