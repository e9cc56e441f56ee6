"""One run, from its recipe to its saved model: launch its processes, make its parts, own its folder, train, save."""
