"""A run, from its recipe to its saved model: launch processes, build the parts, lock the folder, train, save."""
