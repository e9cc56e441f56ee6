"""A run from its recipe to its saved model: launch, build, lock the folder, train, save."""
