"""Check a run before its model is loaded: rows, prompts, rewards, server, disk.

These checks do not use the trainer.
"""
