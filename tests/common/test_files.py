"""Sizes as people read them."""

from __future__ import annotations

import pytest

from grpo_ext.common.files import in_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1,000 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1.5 * 2**20, "1.5 MiB"),
        (1010 * 2**20, "1,010 MiB"),
        (1023.9 * 2**20, "1 GiB"),
        (999.9 * 2**30, "1,000 GiB"),
        (12345 * 2**30, "12,345 GiB"),
    ],
)
def test_a_size_has_no_exponent(count, text):
    assert in_bytes(count) == text
