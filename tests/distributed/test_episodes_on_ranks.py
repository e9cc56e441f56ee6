"""Ranks whose episodes need other numbers of calls of `generate` wait for each other."""

from __future__ import annotations

import pytest

from tests.support.episodes_on_ranks import main
from tests.support.forked import on_ranks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", ["plain", "fsdp2"])
def test_ranks_with_other_numbers_of_rounds_play_to_the_end(tiny_folder, tmp_path, how):
    on_ranks(2, main, how, str(tmp_path), str(tiny_folder))
