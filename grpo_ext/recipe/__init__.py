"""Recipes: flat YAML whose keys are fields of dataclasses, checked before anything heavy is
loaded.
"""
