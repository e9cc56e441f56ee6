"""Short runs of a recipe on this machine, which find its fastest settings: `grpo-ext bench`."""
