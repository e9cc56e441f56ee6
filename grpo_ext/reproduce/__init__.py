"""Compare three published experiments with the package's recipes, and test claims about them."""
