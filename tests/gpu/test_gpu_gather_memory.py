"""The memory of a rank's device while a step's table is gathered.

With NCCL the pickled tables of all ranks lie on it.
"""

from __future__ import annotations

import json

import pytest

from tests.support import gather_on_ranks
from tests.support.forked import on_ranks
from tests.support.gpu_parts import noted


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [(8, 20, 300, 40), (64, 5, 30, 0)], ids=["kept sets", "no kept sets"]
)
def test_two_ranks_hold_three_pickled_tables(tmp_path, shape):
    """On gloo; NCCL's buffers are the same ones, on the device.

    A rank's own, and one for each rank.
    """
    on_ranks(2, gather_on_ranks.gather, tmp_path / "found.json", shape)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rows"] == 2 * shape[0]
    assert found["tensors"] == gather_on_ranks.expected_bytes(*shape)
    assert found["crossed"] == [3 * found["pickled"]]
    # beside its numbers a table has names, and for each row's kept sets a few hundred bytes
    assert found["tensors"] < found["pickled"] < found["tensors"] + 20_000 + 2_000 * shape[0]


@pytest.mark.parametrize(("rows", "ranks"), [(1024, 8), (8192, 64)])
def test_what_a_real_step_takes(rows, ranks):
    """Prompts of 300 tokens, completions of 1,024, 50 kept tokens at each position.

    `refill` on several ranks gathers them.
    """
    own = gather_on_ranks.expected_bytes(rows // ranks, 300, 1024, 50)
    device = (1 + ranks) * own
    noted(
        f"gather of {rows} completions of 1,024 tokens on {ranks} ranks",
        MiB_on_each_device=device / 2**20,
    )
    assert own == (rows // ranks) * (16 * 300 + 28 * 1024 + 12 + 1024 * 208)
    assert device < 2.5 * 2**30
