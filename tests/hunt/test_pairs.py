"""The table of options that meet has every option, and is what the checks say today."""

from __future__ import annotations

import dataclasses

import pytest

from grpo_ext import GRPOExtConfig
from tests.hunt.pairs import BASE, PAGE, page
from tests.support.options import (
    CUT,
    IRRELEVANT,
    NOT_DRAWN,
    VALUES,
    cuts,
    met,
    refusal,
    with_option,
)

FIELDS = {f.name: f for f in dataclasses.fields(GRPOExtConfig)}
DRAWN = [(name, value) for name, values in VALUES.items() for value in values]


def test_every_option_has_its_pairs_or_changes_nothing():
    """A new option goes into `VALUES`, with values for the fuzzer; or into `IRRELEVANT`, where it
    says why. The values of a choice need not be listed.
    """
    irrelevant = [name for names in IRRELEVANT.values() for name in names.split()]
    listed = [*VALUES, *NOT_DRAWN, *irrelevant]
    assert len(listed) == len(set(listed)), "an option is listed twice"
    assert set(FIELDS) - set(listed) == set(), "options.py lacks an option of GRPOExtConfig"
    assert set(listed) - set(FIELDS) == set(), "options.py has an option that is gone"


@pytest.mark.parametrize(("name", "value"), DRAWN, ids=str)
def test_the_fuzzer_draws_each_value(name, value):
    assert value != FIELDS[name].default
    if name in CUT:
        assert any(cut[name] == value for cut in cuts())
    else:
        assert refusal(with_option(BASE, name, value)) is None
        assert name in met(cuts()[-1], "two", [(name, value)])


@pytest.mark.slow
def test_the_page_is_what_the_checks_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make pairs`"
