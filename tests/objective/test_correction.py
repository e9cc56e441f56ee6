"""The correction for a separate sampler against a loop over tokens."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.objective.correction import sampler_correction

log_ratios = st.lists(
    st.floats(-3, 3) | st.none(), max_size=6
)  # `None`: the sampler returned no log-prob
bounds = st.tuples(st.none() | st.floats(0.1, 0.9), st.none() | st.floats(1.1, 3.0))


def factors(ratios, mode, low, high):
    """The factor of each token of one completion."""
    kind, action = mode.split("_")
    known = [0.0 if x is None else x for x in ratios]
    if kind != "token":
        total = sum(known) / (max(len(known), 1) if kind == "geometric" else 1)
        known = [total] * len(known)
    found = []
    for x in known:
        w = math.exp(x)
        bounded = max(w if high is None else min(w, high), 0.0 if low is None else low)
        found.append(bounded if action == "truncate" else w * (bounded == w))
    return found


@pytest.mark.parametrize(
    "mode",
    [
        f"{kind}_{action}"
        for kind in ("token", "sequence", "geometric")
        for action in ("truncate", "mask")
    ],
)
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(log_ratios, min_size=1, max_size=4), limits=bounds)
def test_the_factor_is_that_of_a_loop(mode, rows, limits):
    length = max(map(len, rows)) + 1
    logps = -torch.ones(len(rows), length).double()
    sampled = torch.zeros(len(rows), length).double()
    mask = torch.zeros(len(rows), length)
    for i, ratios in enumerate(rows):
        for t, x in enumerate(ratios):
            mask[i, t], sampled[i, t] = 1, torch.nan if x is None else -1 - x
    found = sampler_correction(logps, sampled, mask, mode, *limits)
    for i, ratios in enumerate(rows):
        row = found.expand(-1, length)[i, : len(ratios)].tolist()
        assert row == pytest.approx(factors(ratios, mode, *limits))
