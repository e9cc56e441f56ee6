"""Log-probs of completions under the policy that sampled them, from as few tokens as can be.

A pass runs completions through a model in one of three layouts: rectangles, chunks of like length with each prompt read once,
or packed rows. Every token sees what it saw before, so that log-probs and gradients are the same in all three.
"""
