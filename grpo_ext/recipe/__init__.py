"""Recipes: flat YAML whose keys are dataclass fields, checked before anything heavy loads."""
