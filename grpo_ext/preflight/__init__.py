"""Check a run before its model is loaded: its rows, prompts, rewards, server and disk.

These checks do not use the trainer.
"""
