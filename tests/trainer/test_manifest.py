"""Which checkpoint is whole, and which are deleted.

Every single bit of a manifest, clocks that go back, other folders.
"""

from __future__ import annotations

import json
import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.common.files import checkpoints
from grpo_ext.trainer.manifest import (
    MANIFEST,
    delete_older,
    newest_whole,
    what_is_wrong,
    write_manifest,
)


def checkpoint(run, step, files=("grpo_state_0.pt", "grpo_state_1.pt", "model.safetensors")):
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text(f"{name} of step {step}")
    write_manifest(folder)
    return folder


def names(run):
    return sorted(path.name for path in run.iterdir())


def test_no_flipped_bit_of_a_manifest_goes_unseen_or_stops_the_search(tmp_path):
    before = checkpoint(tmp_path, 1, ["a"])
    newest = checkpoint(tmp_path, 2, ["a_0", "a_1"])
    whole = (newest / MANIFEST).read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (newest / MANIFEST).write_bytes(flipped)
        assert what_is_wrong(newest) is not None, (bit, bytes(flipped))
    assert newest_whole(tmp_path) == str(before)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_nor_do_several_or_a_cut(tmp_path_factory, data):
    run = tmp_path_factory.getbasetemp() / "several"
    folder = run / "checkpoint-2" if run.exists() else checkpoint(run, 2)
    write_manifest(folder)
    whole = (folder / MANIFEST).read_bytes()
    assert what_is_wrong(folder) is None
    flips = data.draw(
        st.lists(st.integers(0, 8 * len(whole) - 1), min_size=1, max_size=4, unique=True)
    )
    damaged = bytearray(whole)
    for bit in flips:
        damaged[bit // 8] ^= 1 << bit % 8
    damaged = damaged[
        : data.draw(st.integers(0, len(damaged) - 2)) if data.draw(st.booleans()) else None
    ]
    (folder / MANIFEST).write_bytes(damaged)
    assert what_is_wrong(folder) is not None


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "{}",
        "7",
        '"text"',
        '{"a": null}',
        '{"a": []}',
        '{"a": {"size": 1}}',
        '{"a": {"size": 1, "sha256": 2}}',
        '{"": {"size": 0, "sha256": ""}}',
        '{"\\u0000": {"size": 0, "sha256": ""}}',
        '{"\\ud800": {"size": 0, "sha256": ""}}',
        '{"/dev/zero": {"size": 0, "sha256": ""}}',
        "[" * 100_000,
        "9" * 9_999,
        "\udcff",
    ],
    ids=range(16),
)
def test_a_manifest_of_another_shape_leaves_the_checkpoint_before_it(tmp_path, caplog, text):
    before = checkpoint(tmp_path, 1)
    newest = checkpoint(tmp_path, 2)
    (newest / MANIFEST).write_text(text, errors="surrogateescape")
    with caplog.at_level("WARNING"):
        assert newest_whole(tmp_path) == str(before)
    assert f"{newest} is skipped" in caplog.text


def test_so_does_a_folder_in_its_place_or_a_file_in_the_checkpoints(tmp_path):
    before = checkpoint(tmp_path, 1)
    newest = checkpoint(tmp_path, 2)
    (newest / MANIFEST).unlink()
    (newest / MANIFEST).mkdir()
    (tmp_path / "checkpoint-3").write_text("a file")
    assert newest_whole(tmp_path) == str(before)
    (before / "model.safetensors").unlink()
    (before / "model.safetensors").mkdir()
    assert newest_whole(tmp_path) is None


OTHERS = (
    "checkpoint-mybackup",
    "checkpoint-my-3",
    "checkpoint-²",
    "checkpoint-",
    "checkpoint-3-old",
    "old-checkpoint-3",
    "3",
)


def test_only_folders_named_by_a_step_are_checkpoints(tmp_path):
    for name in OTHERS:
        shutil.copytree(checkpoint(tmp_path, 7), tmp_path / name)
        shutil.rmtree(tmp_path / "checkpoint-7")
    assert checkpoints(tmp_path) == [] and newest_whole(tmp_path) is None
    for step in (1, 2, 10):
        checkpoint(tmp_path, step)
    delete_older(tmp_path / "checkpoint-10", 1, None)
    assert names(tmp_path) == sorted([*OTHERS, "checkpoint-10"])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True),
    st.data(),
    st.sampled_from([None, 0, 1, 2, 3]),
    st.booleans(),
)
def test_what_is_deleted_does_not_depend_on_the_clock(tmp_path_factory, steps, data, most, resumed):
    """The one just written and the best stay; then, of the run that wrote it, the newest."""
    run = tmp_path_factory.mktemp("run")
    newest = data.draw(st.sampled_from(steps)) if resumed else max(steps)
    best = data.draw(st.sampled_from([None, *steps]))
    for step in steps:
        (run / f"checkpoint-{step}").mkdir()
        os.utime(run / f"checkpoint-{step}", (0, data.draw(st.integers(0, 10**9))))
    delete_older(
        run / f"checkpoint-{newest}",
        most,
        None if best is None else str(run / f"checkpoint-{best}"),
    )
    kept = {int(path.name.rpartition("-")[2]) for path in run.iterdir()}
    own = {step for step in (newest, best) if step is not None}
    others = sorted(
        set(steps) - own, key=lambda step: (step > newest, -step)
    )  # those left behind go first
    wanted = own | set(others[: max(0, most - len(own))]) if most else set(steps)
    assert kept == wanted


def test_a_run_whose_clock_is_set_back_keeps_what_it_has_just_written(tiny_folder, tmp_path):
    from transformers import TrainerCallback

    from tests.support.resumed_run import make

    backup = tmp_path / "checkpoint-mybackup"
    backup.mkdir()

    class Back(TrainerCallback):
        """Makes what was saved before younger than all that comes."""

        def on_save(self, args, state, control, **kwargs):
            for path in tmp_path.glob("checkpoint-*"):
                os.utime(path, (4e9, 4e9 - state.global_step * 100))

    make(tiny_folder, tmp_path, save_total_limit=2, max_steps=4, callbacks=[Back()]).train()
    assert [path.name for path in checkpoints(tmp_path)] == [
        "checkpoint-3",
        "checkpoint-4",
    ] and backup.is_dir()
    assert newest_whole(tmp_path) == str(tmp_path / "checkpoint-4")
    assert (
        json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())["global_step"]
        == 4
    )
