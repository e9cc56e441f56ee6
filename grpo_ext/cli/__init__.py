"""The console script `grpo-ext`: one file per subcommand, with heavy imports inside functions."""
