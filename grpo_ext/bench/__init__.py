"""Short runs of a recipe on this machine, and the settings that are fastest here; `grpo-ext bench` is the command."""
