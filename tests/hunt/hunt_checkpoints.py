"""Whatever happens to the files of checkpoints, the run goes on from the newest whole one, bit for
bit, or refuses in words.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from grpo_ext.trainer.checkpoint import CheckpointMismatch
from grpo_ext.trainer.manifest import MANIFEST, newest_whole
from tests.hunt.hunt_kills import check_end, wanted
from tests.support.fault_runs import KillAt, make, start, wait
from tests.support.hunting import held, hunt, in_child, model
from tests.support.killed_runs import train

STEPS = (6, 5, 4)  # of the checkpoints that there are; those of the first two are damaged
DAMAGES = (
    "flip",
    "truncate",
    "longer",
    "list",
    "null",
    "object",
    "bytes",
    "delete",
    "folder",
    "link",
)


def killed_in_step_7() -> Path:
    return held("cut", lambda out: wait(start(1, out, lambda: train(model(), out, kill=KillAt(7)))))


def goes_on_or_refuses(
    damages: list[tuple[int, str, str, float]], goes_on: bool, named: bool
) -> None:
    """Damage copies of real checkpoints.

    Args:
        damages: the step of the checkpoint, a file of it ("": the folder itself), what is done to
        it, and where in it. goes_on: the run really does. named: it is told to go on from the
        newest checkpoint, by its name.
    """
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as folder:
        out = Path(folder) / "run"
        shutil.copytree(killed_in_step_7(), out)
        before = {step: content(out / f"checkpoint-{step}") for step in STEPS}
        for step, name, damage, where in damages:
            spoil(out / f"checkpoint-{step}" / name, damage, where)
        whole = next(step for step in STEPS if content(out / f"checkpoint-{step}") == before[step])

        def body() -> None:
            found = Path(newest_whole(out)).name
            assert found == f"checkpoint-{whole}", f"taken: {found}, whole: checkpoint-{whole}"
            if goes_on:
                try:
                    make(model(), out).train(str(out / "checkpoint-6") if named else True)
                except CheckpointMismatch as error:
                    assert named and whole != 6, f"refused: {error}"
                else:
                    check_end(out)

        in_child(body, seconds=120, gibibytes=8.0)


def content(path: Path) -> Any:
    """What a file or folder holds; of a manifest what it says, however it is written."""
    if path.is_dir():
        return {part.name: content(part) for part in path.iterdir()}
    held_bytes = path.read_bytes() if path.is_file() else None
    try:
        return json.loads(held_bytes) if path.name == MANIFEST else held_bytes
    except (TypeError, ValueError):
        return held_bytes


def spoil(path: Path, damage: str, where: float) -> None:
    """Do it; files that are gone already stay so."""
    if not path.exists() or (path.is_dir() and damage in ("flip", "truncate", "longer")):
        return
    old = path.read_bytes() if path.is_file() else b""
    at = int(where * max(len(old) - 1, 0))
    flipped = (
        old[:at]
        + bytes(byte ^ 1 << int(1000 * where) % 8 for byte in old[at : at + 1])
        + old[at + 1 :]
    )
    new = {"flip": flipped, "truncate": old[:at], "longer": old + b"\n"}
    new |= {"list": b"[]", "null": b"null", "object": b"{}", "bytes": b"\xff\x00?"}
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "link":
        path.symlink_to("nowhere")
    elif damage != "delete":
        path.write_bytes(new[damage])


def test_checkpoints():
    files = sorted(path.name for path in (killed_in_step_7() / "checkpoint-6").iterdir())
    file = st.one_of(
        st.sampled_from(files),
        st.sampled_from(["", MANIFEST, "grpo_state_0.pt", "trainer_state.json"]),
    )
    damage = st.tuples(st.sampled_from(STEPS[:2]), file, st.sampled_from(DAMAGES), st.floats(0, 1))
    hunt(
        goes_on_or_refuses,
        wanted,
        damages=st.lists(damage, min_size=1, max_size=3),
        goes_on=st.sampled_from([False] * 9 + [True]),
        named=st.booleans(),
    )
