"""Measure how a recipe's token probabilities differ between sampler, trainer and float32 copy."""
