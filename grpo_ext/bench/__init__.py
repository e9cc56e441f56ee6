"""Short runs of a recipe on this machine that find its fastest settings: `grpo-ext bench`."""
