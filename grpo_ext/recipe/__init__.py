"""Recipes: flat YAML files whose keys are dataclass fields, checked before anything heavy loads."""
