"""Whatever happens to the files of checkpoints, the run goes on from the newest whole one, bit for bit, or refuses in words."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hunting import hunt, in_child, model
from hypothesis import strategies as st
from runs import check_end, cut_off, wanted

from benchmarks.fault_runs import make
from grpo_ext.trainer.checkpoint import CheckpointMismatch
from grpo_ext.trainer.manifest import MANIFEST, newest_whole

STEPS = (6, 5)  # of the checkpoints that are damaged; that of step 4 is not
DAMAGES = ("flip", "truncate", "longer", "list", "null", "object", "bytes", "delete", "folder", "link")


def goes_on_or_refuses(damages: list[tuple[int, str, str, float]], goes_on: bool, named: bool) -> None:
    """Damage copies of real checkpoints.

    Args:
        damages: the step of the checkpoint, a file of it ("": the folder itself), what is done to it, and where in it.
        goes_on: the run really does.
        named: it is told to go on from the newest checkpoint, by its name.
    """
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as folder:
        out = Path(folder) / "run"
        shutil.copytree(cut_off(), out)
        before = contents(out)
        for step, name, damage, where in damages:
            spoil(out / f"checkpoint-{step}" / name, damage, where)
        after = contents(out)
        untouched = next(step for step in (*STEPS, 4) if after[step] == before[step])
        sound = [
            step for step in (*STEPS, 4) if after[step].items() - before[step].items() <= changed_manifest(after[step])
        ]

        def body() -> None:
            found = int(Path(newest_whole(out)).name.rpartition("-")[2])
            assert found >= untouched and found in sound, f"taken: {found}, whole: {untouched}"
            if goes_on:
                try:
                    make(model(), out).train(str(out / "checkpoint-6") if named else True)
                except CheckpointMismatch as error:
                    assert named and untouched != 6, f"refused: {error}"
                else:
                    check_end(out)

        in_child(body, seconds=120, gibibytes=8.0)


def contents(out: Path) -> dict[int, dict[str, bytes | None]]:
    """The files of each checkpoint; `None` for a folder."""
    found: dict[int, dict[str, bytes | None]] = {}
    for step in (*STEPS, 4):
        top = out / f"checkpoint-{step}"
        paths = top.rglob("*") if top.is_dir() else [top]
        found[step] = {str(p.relative_to(top)): p.read_bytes() if p.is_file() else None for p in paths}
    return found


def changed_manifest(files: dict[str, bytes | None]) -> set[tuple[str, bytes | None]]:
    """What may differ in a checkpoint that is taken: how its manifest is written."""
    return {(MANIFEST, files.get(MANIFEST))}


def spoil(path: Path, damage: str, where: float) -> None:
    """Do it; files that are gone already stay so."""
    if not path.exists() or (path.is_dir() and damage in ("flip", "truncate", "longer")):
        return
    content = path.read_bytes() if path.is_file() else b""
    at = int(where * max(len(content) - 1, 0))
    flipped = (
        content[:at] + bytes(byte ^ 1 << int(1000 * where) % 8 for byte in content[at : at + 1]) + content[at + 1 :]
    )
    written = {"flip": flipped, "truncate": content[:at], "longer": content + b"\n"}
    written |= {"list": b"[]", "null": b"null", "object": b"{}", "bytes": b"\xff\x00?"}
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "link":
        path.symlink_to("nowhere")
    elif damage != "delete":
        path.write_bytes(written[damage])


def test_checkpoints():
    files = sorted(path.name for path in (cut_off() / "checkpoint-6").iterdir())
    file = st.one_of(st.sampled_from(files), st.sampled_from(["", MANIFEST, "grpo_state_0.pt", "trainer_state.json"]))
    damage = st.tuples(st.sampled_from(STEPS), file, st.sampled_from(DAMAGES), st.floats(0, 1))
    hunt(
        goes_on_or_refuses,
        wanted,
        damages=st.lists(damage, min_size=1, max_size=3),
        goes_on=st.sampled_from([False] * 9 + [True]),
        named=st.booleans(),
    )
