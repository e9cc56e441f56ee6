"""Programs that measure, one file a question: `python -m benchmarks.NAME` in the folder of the checkout."""
