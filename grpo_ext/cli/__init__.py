"""The console script `grpo-ext`: one module per subcommand, with heavy imports in functions."""
