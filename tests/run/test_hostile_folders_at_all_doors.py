"""Folders of somebody else at all doors: each ends within bounds of memory and time, shows and
changes nothing of the reader's, and runs no code of the folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from grpo_ext.common import prompt_tokens
from tests.support.forked import Forked
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
from tests.support.hostile_folders import limit_this_process

CROWD = "crowd"  # takes ten seconds to make
KINDS = [kind for kind in (*FILE_KINDS, *BUSY_KINDS, *MODEL_KINDS) if kind != CROWD]
QUICK = ("fifo", "swapped", "many_layers")
# Doors that read no model: a hostile model is no folder for them.
WITHOUT_MODEL = ("report", "live page", "resume")


@pytest.fixture(scope="module")
def base(tmp_path_factory, tiny_folder) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "base"
    make_base(folder, tiny_folder)
    return folder


def enter_all_doors(base: str, work: str, kind: str, figures: str) -> None:
    """Spoil a copy for each door, at another place for each kind."""
    limit_this_process()
    prompt_tokens.TEMPLATE_SECONDS = 0.2
    number = KINDS.index(kind)
    measured = []
    for door, places in PLACES.items():
        if kind in MODEL_KINDS and door in WITHOUT_MODEL:
            continue
        chosen = {places[number % len(places)], places[0]}
        if kind in MODEL_KINDS:  # which spoil the model, whatever the place
            chosen = {places[0]}
        for place in chosen:
            folder = Path(work) / f"{len(measured)}"
            shutil.copytree(base, folder, symlinks=True)
            spoil(folder, kind, place)
            print(kind, door, place, flush=True)
            measured.append({"kind": kind, "place": place, **enter(door, folder, [(kind, place)])})
            shutil.rmtree(folder, ignore_errors=True)
    Path(figures).write_text(json.dumps(measured))


def test_there_are_many_kinds_and_all_doors():
    assert len(FILE_KINDS) + len(BUSY_KINDS) >= 30
    assert len(DOORS) == 7
    assert PLACES.keys() == DOORS.keys()


@pytest.mark.parametrize(
    "kind",
    [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_every_door_ends_and_shows_nothing(tmp_path, base, kind):
    figures = tmp_path / "figures.json"
    (tmp_path / "work").mkdir()
    reader = Forked(enter_all_doors, str(base), str(tmp_path / "work"), kind, str(figures))
    assert reader.wait() == 0, reader.printed[-3000:]
    assert json.loads(figures.read_text())


def enter_crowd(base: str, work: str, door: str) -> None:
    limit_this_process()
    folder = Path(work) / "folder"
    shutil.copytree(base, folder, symlinks=True)
    place = PLACES[door][0]
    spoil(folder, CROWD, place)
    print(enter(door, folder, [(CROWD, place)]))


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_a_folder_of_a_hundred_thousand_files_stops_no_door(tmp_path, base, door):
    reader = Forked(enter_crowd, str(base), str(tmp_path), door)
    assert reader.wait() == 0, reader.printed[-3000:]


def test_whole_folders_pass_all_doors(tmp_path, base):
    """Without this, a door that refuses everything would pass the tests above."""
    folder = tmp_path / "folder"
    shutil.copytree(base, folder)
    reader = Forked(enter_whole, str(folder))
    assert reader.wait() == 0, reader.printed[-3000:]
    assert (folder / "page.html").is_file()
    assert (folder / "adapter" / "merged" / "config.json").is_file()
    assert (folder / "mine" / "recipe.yaml").is_file()


def enter_whole(folder: str) -> None:
    for door in DOORS:
        enter(door, Path(folder), [])
