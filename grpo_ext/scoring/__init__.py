"""Score completions under the policy that sampled them, running as few tokens as possible.

A pass runs completions through a model in one of three layouts: padded rectangles, chunks of
similar length with each prompt read once, or packed rows. Every token sees the same context in all
three, so log-probs and gradients are the same.
"""
