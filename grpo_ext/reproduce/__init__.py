"""What was published about the three experiments, and how recipes and runs compare with it."""
