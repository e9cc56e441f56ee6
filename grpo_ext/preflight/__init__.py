"""Check, estimate and propose recipes before training: rows, prompts, rewards, memory and disk.

Nothing here uses the trainer.
"""
