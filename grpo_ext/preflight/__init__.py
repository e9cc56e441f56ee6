"""What can be known of a run before a model is loaded: its rows, prompts, rewards, server, disk. No room of the trainer's."""
