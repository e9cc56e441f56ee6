"""The console script `grpo-ext`: one file a subcommand, heavy imports inside the functions."""
