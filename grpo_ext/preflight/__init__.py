"""Checks of a run before its model is loaded: rows, prompts, rewards, server, disk.

They do not use the trainer.
"""
