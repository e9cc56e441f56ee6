"""Check, estimate and propose recipes before training: rows, prompts, rewards, memory and disk.

No module in this package uses the trainer.
"""
