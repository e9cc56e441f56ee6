"""Fast decoding: each distinct prompt is prefilled once, and finished rows leave the batch.

These modules import torch and transformers, but no trainer. `grpo_ext.seams.generate` calls them
from a model's `generate`, so generation configs, logits processors and stopping criteria work as
usual.
"""
