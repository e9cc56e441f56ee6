"""Fast decoding: each distinct prompt is read once, and rows that have ended leave the batch.

These modules import torch and transformers, but no trainer. `grpo_ext.seams.generate` calls them
from a model's `generate`, so generation configs, logits processors and stopping criteria work as
usual.
"""
