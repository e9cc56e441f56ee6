"""Choose training prompts by difficulty or by how often they are solved."""
