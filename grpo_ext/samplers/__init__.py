"""What completes prompts: transformers' `generate`, vLLM within the process or as a server, or a function of the user's.

A sampler gives a `Generation` and takes weights. It knows nothing of rewards, groups or losses.
"""
