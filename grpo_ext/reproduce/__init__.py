"""What was published about three experiments: how recipes compare with it, and claims that runs
decide.
"""
