"""Measure how far token probabilities differ between a recipe's sampler, trainer and float32."""
