"""The console script `grpo-ext`: one file a subcommand, with heavy imports inside functions."""
