"""Run a recipe: launch its processes, lock its folder, build its parts, train, save the model."""
