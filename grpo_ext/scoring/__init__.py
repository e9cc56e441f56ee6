"""Log-probs of completions under the policy that sampled them, from as few tokens as possible.

A pass runs completions through a model in one of three layouts: rectangles, chunks of similar
length with each prompt read once, or packed rows. Every token sees the same context in each layout,
so log-probs and gradients are the same.
"""
