"""Compare three published experiments with the package's recipes, and test their claims."""
