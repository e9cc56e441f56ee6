"""Programs that measure the package; each file answers one question.

Run `python -m benchmarks.NAME` in the root folder of the checkout.
"""
