"""Compute the log-probs of completions under a model, running it on as few tokens as possible.

A forward pass uses one of three layouts: padded rectangles, chunks, or packed rows. Chunks group
completions by length, and can share the cached keys and values of their prompts. Every token
attends to the same context in all three layouts, so log-probs and gradients are the same up to
rounding.
"""
