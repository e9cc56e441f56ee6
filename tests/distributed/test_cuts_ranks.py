"""However a step is cut and packed, two ranks make the same collective calls, share the work and
have TRL's gradient.
"""

from __future__ import annotations

import json

import pytest

from tests.support.forked import on_ranks
from tests.support.step_on_ranks import VARIANTS, compare

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks") / "found.json"
    on_ranks(2, compare, out)
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", VARIANTS)
def test_two_ranks_have_the_gradient_of_trl_and_call_equally_often(found, name):
    first, second = found[name]
    assert first["apart"] < 1e-5 and second["apart"] < 1e-5
    assert first["calls"] == second["calls"] and first["calls"]
    assert len(first["tokens"]) == len(second["tokens"])


@pytest.mark.parametrize("name", VARIANTS)
def test_two_ranks_have_about_the_same_work(found, name):
    first, second = (sum(rank["tokens"]) for rank in found[name])
    assert abs(first - second) < 0.15 * (first + second)


def test_cut_micro_batches_are_more_and_no_larger_than_asked(found):
    assert len(found["cut"][0]["tokens"]) > len(found["shared prompts"][0]["tokens"])
    assert max(max(rank["tokens"]) for rank in found["cut"]) <= 250
