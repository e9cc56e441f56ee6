"""The entropy bonus's coefficient.

Constant, or moved towards a target by steps within its bounds.
"""

from __future__ import annotations

import math

import pytest

from grpo_ext.step.loss import EntropyControl


@pytest.mark.parametrize("coef", [0.02, -0.02, 0.0])
def test_a_constant_coefficient_stays(coef):
    control = EntropyControl(enabled=True)
    assert control.weight(coef, math.inf) == control.weight(coef, 0.001) == coef
    assert control.coef_after(coef, 0.001) == coef


def test_a_run_without_a_bonus_has_none_whatever_the_coefficient():
    assert EntropyControl(enabled=False).weight(0.02, 0.1) is None


def adaptive():
    return EntropyControl(enabled=True, adaptive=True, target=0.5, delta=0.1, highest=0.25)


def test_the_coefficient_rises_at_or_below_the_target_and_falls_above_it():
    control = adaptive()
    coef = 0.1
    assert control.weight(coef, math.inf) == 0.0  # nothing is known of the entropy yet
    coefs = []
    weights = []
    for entropy in (0.5, 0.4, 0.3, 0.6, 0.7, 0.8, 0.2):
        coef = control.coef_after(coef, entropy)
        coefs.append(coef)
        weights.append(control.weight(coef, entropy))
    assert coefs == pytest.approx([0.2, 0.25, 0.25, 0.15, 0.05, 0.0, 0.1])
    only_at_or_below_the_target = [0.2, 0.25, 0.25, 0, 0, 0, 0.1]
    assert weights == pytest.approx(only_at_or_below_the_target)
