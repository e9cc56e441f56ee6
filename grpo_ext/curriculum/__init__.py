"""The choice of prompts by pass rates, the figures of groups, and the harvest of good completions; the trainer uses them."""
