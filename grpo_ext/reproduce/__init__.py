"""Published results of three experiments: compared recipes, and claims that runs decide."""
