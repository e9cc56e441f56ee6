"""Measure all figures of a GPU with one command: `python -m benchmarks.gpu`."""
