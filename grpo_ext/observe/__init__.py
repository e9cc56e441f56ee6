"""What a run looked like, from what it wrote down."""
