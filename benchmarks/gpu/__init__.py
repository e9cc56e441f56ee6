"""All figures of a GPU in one go: `python -m benchmarks.gpu`."""
