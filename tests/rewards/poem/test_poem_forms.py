"""The patterns, against those that handbooks print."""

from itertools import product

import pytest

from grpo_ext.rewards.poem.forms import counted_places, forms

# As printed in handbooks of 诗词格律, from the first line to the fourth.
PRINTED = {
    "五言绝句(仄起仄收式)": "仄仄平平仄 平平仄仄平 平平平仄仄 仄仄仄平平",
    "五言绝句(仄起平收式)": "仄仄仄平平 平平仄仄平 平平平仄仄 仄仄仄平平",
    "五言绝句(平起仄收式)": "平平平仄仄 仄仄仄平平 仄仄平平仄 平平仄仄平",
    "五言绝句(平起平收式)": "平平仄仄平 仄仄仄平平 仄仄平平仄 平平仄仄平",
    "七言绝句(平起仄收式)": "平平仄仄平平仄 仄仄平平仄仄平 仄仄平平平仄仄 平平仄仄仄平平",
    "七言绝句(平起平收式)": "平平仄仄仄平平 仄仄平平仄仄平 仄仄平平平仄仄 平平仄仄仄平平",
    "七言绝句(仄起仄收式)": "仄仄平平平仄仄 平平仄仄仄平平 平平仄仄平平仄 仄仄平平仄仄平",
    "七言绝句(仄起平收式)": "仄仄平平仄仄平 平平仄仄仄平平 平平仄仄平平仄 仄仄平平仄仄平",
    "五言律诗(仄起仄收式)": "仄仄平平仄 平平仄仄平 平平平仄仄 仄仄仄平平 仄仄平平仄 平平仄仄平 平平平仄仄 仄仄仄平平",
    "七言律诗(平起平收式)": "平平仄仄仄平平 仄仄平平仄仄平 仄仄平平平仄仄 平平仄仄仄平平 "
    "平平仄仄平平仄 仄仄平平仄仄平 仄仄平平平仄仄 平平仄仄仄平平",
}


def test_four_patterns_a_form_all_different():
    for length, count in product((5, 7), (4, 8)):
        found = forms(length, count)
        assert len({form.name for form in found}) == len({form.lines for form in found}) == 4
        assert all(
            len(form.lines) == count and set(map(len, form.lines)) == {length} for form in found
        )


@pytest.mark.parametrize(("name", "printed"), PRINTED.items())
def test_patterns_are_those_of_the_handbooks(name, printed):
    found = {
        form.name: form
        for length, count in product((5, 7), (4, 8))
        for form in forms(length, count)
    }
    assert found[name].lines == tuple(printed.split())


def test_a_line_rhymes_where_it_ends_on_a_level_tone():
    for length, count in product((5, 7), (4, 8)):
        for form in forms(length, count):
            assert sorted(form.rhyming) == [
                n for n, line in enumerate(form.lines) if line[-1] == "平"
            ]
            assert form.rhyming[0] == 1
            assert ("平收" in form.name) == (form.rhyming[-1] == 0)


def test_second_four_and_six_count_and_the_last():
    assert counted_places(7, False) == (1, 3, 5, 6)
    assert counted_places(5, False) == (1, 3, 4)
    assert counted_places(7, True) == (0, 1, 2, 3, 4, 5, 6)
