"""Run a recipe: launch processes, lock the output folder, build rows and rewards, train, save."""
