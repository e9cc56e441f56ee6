"""Decoding a batch without waste: each prompt is read once, and rows that have ended are not decoded on.

Knows torch and transformers, and no trainer. `grpo_ext.seams.generate` puts it behind a model's own `generate`, so that
generation configs, logits processors and stopping criteria mean what they mean there.
"""
