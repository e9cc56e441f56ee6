"""A demo of the whole job in one command on a CPU: data, a tiny model, a warm start, GRPO, and the results."""
