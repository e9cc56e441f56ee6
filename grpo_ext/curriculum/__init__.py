"""Choose training prompts by their difficulty or by how often they are solved."""
