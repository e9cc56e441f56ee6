"""The part of the reward `code` that runs inside the sandbox. It imports only the standard
library.
"""
