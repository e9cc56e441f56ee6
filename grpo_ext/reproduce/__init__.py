"""What was published about three experiments: how recipes differ, and claims that runs test."""
