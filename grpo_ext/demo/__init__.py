"""Complete demos on a CPU: data, a small model, a warm start, GRPO, and the results."""
