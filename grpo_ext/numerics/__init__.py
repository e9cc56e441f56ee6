"""Measure how far a recipe's probabilities differ between sampler, trainer and float32."""
