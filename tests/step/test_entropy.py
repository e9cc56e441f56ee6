"""The entropy bonus's coefficient: constant, or moved towards a target by steps within its bounds."""

from __future__ import annotations

import pytest

from grpo_ext.step.entropy import EntropyControl


@pytest.mark.parametrize("coef, now", [(0.0, None), (0.02, 0.02), (-0.02, -0.02)])
def test_a_constant_coefficient_stays(coef, now):
    control = EntropyControl(coef)
    assert control.now == now
    control.observe(0.001)
    assert control.now == now


def adaptive(**settings):
    return EntropyControl(
        **{"coef": 0.1, "adaptive": True, "target": 0.5, "delta": 0.1, "highest": 0.25, **settings}
    )


def test_the_coefficient_rises_at_or_below_the_target_and_falls_above_it():
    control = adaptive()
    assert control.now == 0.0  # nothing is known of the entropy yet
    seen = []
    for entropy in (0.5, 0.4, 0.3, 0.6, 0.7, 0.8, 0.2):
        control.observe(entropy)
        seen.append((control.coef, control.now))
    coefs = [0.2, 0.25, 0.25, 0.15, 0.05, 0.0, 0.1]
    assert [coef for coef, _ in seen] == pytest.approx(coefs)
    assert [now for _, now in seen] == pytest.approx(
        [0.2, 0.25, 0.25, 0, 0, 0, 0.1]
    )  # only at or below the target


def test_a_step_without_an_entropy_moves_nothing():
    control = adaptive()
    control.observe(0.4)
    control.observe(None)
    assert (control.coef, control.now) == (pytest.approx(0.2), pytest.approx(0.2))


def test_the_state_goes_on():
    control, other = adaptive(), adaptive()
    control.observe(0.4)
    other.load_state_dict(control.state_dict())
    for c in (control, other):
        c.observe(0.45)
    assert (other.coef, other.now) == (control.coef, control.now) == (0.25, 0.25)
