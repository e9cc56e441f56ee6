"""The console script `grpo-ext`: one file for each subcommand, with heavy imports inside functions."""
