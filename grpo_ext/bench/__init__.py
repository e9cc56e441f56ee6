"""Short runs that find the fastest settings of a recipe on this machine: `grpo-ext bench`."""
