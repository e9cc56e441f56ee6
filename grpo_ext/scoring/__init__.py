"""Compute the log-probs of completions under a model, running as few tokens as possible.

A forward pass uses one of three layouts: padded rectangles, chunks of completions of similar length
that can share the cached keys and values of their prompt, or packed rows. Every token attends to
the same context in all three, so log-probs and gradients are the same.
"""
