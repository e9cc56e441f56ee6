"""Programs that measure, one file per question.

`python -m benchmarks.NAME` in the folder of the checkout.
"""
