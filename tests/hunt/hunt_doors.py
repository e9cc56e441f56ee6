"""Folders with several hostile things at once, read by `report`, the live page, `resume`, `eval`,
`merge`, `init` and `check`.

All end within bounds of memory and time, show and change nothing of the reader's, and run no code.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import strategies as st

from tests.support.hostile_doors import (
    BUSY_KINDS,
    DOORS,
    FILE_KINDS,
    MODEL_KINDS,
    PLACES,
    enter,
    make_base,
    spoil,
)
from tests.support.hunting import SECONDS, held, hunt, in_child, model

ALL_PLACES = sorted({place for places in PLACES.values() for place in places})
# A template without an end is given up after half a minute, and `crowd` takes seconds to make: both
# are for the tests.
SLOW = ("endless_template", "growing_template", "crowd")
KINDS = sorted({*FILE_KINDS, *BUSY_KINDS, *MODEL_KINDS} - {*SLOW})


def base() -> Path:
    whole = model()
    return held("base", lambda folder: make_base(folder, whole))


def doors_end(tricks: list[tuple[str, str]], door: str) -> None:
    """Read a folder by a door.

    Args:
        tricks: what is done to the folder, in this order: a kind of `hostile_doors`, and the file
        in whose place it is put. door: of `DOORS`.
    """
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-", ignore_cleanup_errors=True) as work:
        folder = Path(work, "folder")
        shutil.copytree(base(), folder, symlinks=True)

        def body() -> None:
            for kind, place in tricks:
                # an earlier trick has taken its file, or nested it too deep to read
                with suppress(OSError, ValueError, RecursionError):
                    spoil(folder, kind, place)
            print(enter(door, folder, tricks))

        in_child(body, seconds=60, gibibytes=0.75)


def test_doors():
    trick = st.tuples(st.sampled_from(KINDS), st.sampled_from(ALL_PLACES))
    hunt(
        doors_end,
        prepare=base,
        seconds=max(SECONDS, 20.0),
        tricks=st.lists(trick, min_size=1, max_size=4),
        door=st.sampled_from(sorted(DOORS)),
    )
