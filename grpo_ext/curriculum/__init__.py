"""The choice of prompts by pass rates, and the figures of groups; the trainer uses them."""
