"""Recipes: flat YAML files whose keys are dataclass fields, checked before a model is loaded."""
