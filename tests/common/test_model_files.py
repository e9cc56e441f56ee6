"""How much longer the replacements of a tokenizer can make a string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.normalizers import Replace, Sequence

from grpo_ext.common.model_files import growth_of_text

NEVER_EMPTY = ("a", " {2,}", "\\s+", "b+c{3}")
MAYBE_EMPTY = ("", ".", "a*", "a?", "(?=a)", "^", "a|", "[ab]*", "x{0}", "a{1,0}", "c{1,2}")


def content_of(replacements):
    entries = []
    for pattern, content in replacements:
        entries.append({"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
    return {"normalizer": {"type": "Sequence", "normalizers": entries}}


@given(
    st.lists(
        st.tuples(st.sampled_from(NEVER_EMPTY + MAYBE_EMPTY), st.text("ab ", max_size=3)),
        max_size=4,
    ),
    st.text("abc x", min_size=1, max_size=8),
)
def test_no_replacement_makes_a_string_longer_than_the_bound(replacements, text):
    normalizer = Sequence([Replace(Regex(pattern), content) for pattern, content in replacements])
    longest = len(text) * growth_of_text(content_of(replacements))
    assert len(normalizer.normalize_str(text)) <= longest


@pytest.mark.parametrize(
    ("pattern", "growth"),
    [
        ({"String": " "}, 3),
        ({"String": ""}, 7),
        ({"Regex": " {2,}"}, 3),
        ({"Regex": "\\s+"}, 3),
        ({"Regex": "a*"}, 7),
        ({"Regex": "(a)"}, 7),
        (None, 7),
    ],
)
def test_patterns_that_may_be_empty_count_more(pattern, growth):
    replace = {"type": "Replace", "pattern": pattern, "content": "xyz"}
    assert growth_of_text({"normalizer": replace}) == growth
