"""Summarize a figure over several seeds."""

from grpo_ext.common.estimates import Estimate


def as_text(difference: Estimate | None) -> str:
    """Return the mean of a difference over seeds with its 95 % interval and the verdict.

    With a single seed, return only the mean.
    """
    if difference is None:
        return "not measured"
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.3f} (one seed: no verdict)"
    interval = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"{difference.mean:+.3f} {interval}, {difference.problems} seeds: {difference.verdict}"
