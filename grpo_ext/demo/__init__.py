"""The main job from nothing: data, a tiny model, warm start, GRPO, and what it did, in one command on a CPU."""
