"""Checkpoints, models, adapters and data of somebody else, for those who resume, evaluate, merge,
check or begin.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from pyarrow import parquet

from grpo_ext.cli.main import main
from grpo_ext.common.adapters import check_model_folder
from grpo_ext.common.foreign_files import MOST_HOLES, ForeignFile, open_plain
from grpo_ext.common.whole_model import folder_faults
from grpo_ext.curriculum.pass_rates import read_pass_rates
from grpo_ext.demo.stages import Stages
from grpo_ext.recipe.difference import differences
from grpo_ext.recipe.folder import accelerate_settings
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.recipe.read import read_yaml
from grpo_ext.tasks import foreign_rows
from grpo_ext.tasks.open_dataset import open_dataset
from grpo_ext.trainer.manifest import MANIFEST, newest_whole, what_is_wrong, write_manifest
from grpo_ext.trainer.state import CheckpointMismatch, load_plain
from tests.support.forked import Forked
from tests.support.hostile_folders import (
    ENDLESS,
    KINDS,
    SECRET,
    endless_line,
    fifo,
    limit_this_process,
)

SPECIAL = [
    kind for kind in KINDS if kind.__name__ in ("fifo", "device", "terminal", "bound_socket")
]
LINKS_OUT = ("link_out", "relative_link_out", "link_through_a_folder")
NAMED = {"ids": lambda kind: kind.__name__}


def checkpoint(run: Path, step: int) -> Path:
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    torch.save({"version": 0}, folder / "grpo_state_0.pt")
    write_manifest(folder)
    assert what_is_wrong(folder) is None
    return folder


def secrets(folder: Path) -> Path:
    folder.mkdir()
    for name in (
        MANIFEST,
        "model.safetensors",
        "grpo_state_0.pt",
        "recipe.yaml",
        "rows.jsonl",
        "extra",
    ):
        (folder / name).write_text(SECRET)
    return folder


def look_for_the_newest(run: str, whole: str) -> None:
    limit_this_process()
    assert newest_whole(Path(run)) == whole


@pytest.mark.parametrize("name", [MANIFEST, "model.safetensors", "grpo_state_0.pt"])
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.__name__ != "endless_line"], **NAMED
)
def test_a_checkpoint_with_such_a_file_is_passed_over(tmp_path, kind, name):
    whole = checkpoint(tmp_path / "run", 1)
    odd = checkpoint(tmp_path / "run", 2)
    (odd / name).unlink()
    kind(odd / name, secrets(tmp_path / "private"))
    reader = Forked(look_for_the_newest, str(tmp_path / "run"), str(whole))
    assert reader.wait() == 0, reader.printed[-3000:]
    assert SECRET not in reader.printed


def test_an_endless_manifest_is_no_manifest(tmp_path):
    odd = checkpoint(tmp_path / "run", 2)
    os.truncate(odd / MANIFEST, ENDLESS)
    reader = Forked(look_for_the_newest, str(tmp_path / "run"), None)
    assert reader.wait() == 0, reader.printed[-3000:]


def test_a_checkpoint_of_a_terabyte_that_is_on_no_disk_is_not_hashed(tmp_path):
    whole = checkpoint(tmp_path / "run", 1)
    sparse = checkpoint(tmp_path / "run", 2)
    os.truncate(sparse / "model.safetensors", ENDLESS)
    listed = json.loads((sparse / MANIFEST).read_text())
    listed["model.safetensors"]["size"] = ENDLESS
    (sparse / MANIFEST).write_text(json.dumps(listed))
    reader = Forked(look_for_the_newest, str(tmp_path / "run"), str(whole))
    assert reader.wait() == 0, reader.printed[-3000:]
    assert "a sparse file" in reader.printed


def test_files_with_small_holes_are_read(tmp_path):
    """`cp --sparse` and rsync leave holes where weights are zero."""
    path = tmp_path / "weights"
    with path.open("wb") as file:
        for place in range(0, 2**32, 2**30):
            file.seek(place)
            file.write(b"x")
    assert path.stat().st_blocks * 512 < 2**20
    with pytest.raises(ForeignFile, match="a sparse file"):
        open_plain(path)
    os.truncate(path, MOST_HOLES)
    open_plain(path).close()


@pytest.mark.parametrize("kind", SPECIAL, **NAMED)
def test_a_special_file_beside_those_of_the_manifest_is_noticed(tmp_path, kind):
    folder = checkpoint(tmp_path / "run", 1)
    kind(folder / "rng_state.pth", tmp_path)
    assert "not a plain file" in what_is_wrong(folder)


@pytest.mark.parametrize(
    "name", ["../private/extra", "{private}/extra", "a/../../../private/extra"]
)
def test_a_manifest_that_names_files_outside_is_damaged(tmp_path, name):
    private = secrets(tmp_path / "private")
    folder = checkpoint(tmp_path / "run", 1)
    (folder / "a").mkdir()
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    entry = {"size": len(SECRET), "sha256": digest}
    (folder / MANIFEST).write_text(json.dumps({name.format(private=private): entry}))
    assert what_is_wrong(folder) == f"its {MANIFEST} is damaged"


def test_a_link_out_of_a_checkpoint_is_noticed_though_size_and_hash_are_right(tmp_path):
    folder = checkpoint(tmp_path / "run", 1)
    (folder / "model.safetensors").rename(tmp_path / "weights")
    (folder / "model.safetensors").symlink_to(tmp_path / "weights")
    assert what_is_wrong(folder) == "model.safetensors is a link to a file outside the checkpoint"
    (folder / "model.safetensors").unlink()
    (tmp_path / "weights").rename(folder / "weights")
    (folder / "model.safetensors").symlink_to("weights")
    assert what_is_wrong(folder) is None
    (tmp_path / "other").symlink_to(folder)  # a whole checkpoint on another disk
    assert what_is_wrong(tmp_path / "other") is None


def load_state(path: str) -> None:
    limit_this_process()
    with pytest.raises(CheckpointMismatch, match="cannot be loaded"):
        load_plain(Path(path))


@pytest.mark.parametrize("kind", KINDS, **NAMED)
def test_a_state_that_is_no_state_is_refused(tmp_path, kind):
    private = secrets(tmp_path / "private")
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "grpo_state_0.pt"
    kind(path, private)
    reader = Forked(load_state, str(path))
    assert reader.wait() == 0, reader.printed[-3000:]


def saved(size: int) -> bytes:
    file = io.BytesIO()
    torch.save({"x": torch.zeros(size)}, file)
    return file.getvalue()


def test_a_compressed_state_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "grpo_state_0.pt"
    with zipfile.ZipFile(io.BytesIO(saved(2**28))) as whole, zipfile.ZipFile(path, "w") as small:
        for part in whole.infolist():
            small.writestr(part.filename, whole.read(part), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**22
    reader = Forked(load_state, str(path))
    assert reader.wait() == 0, reader.printed[-3000:]


def test_parts_that_share_their_bytes_are_refused(tmp_path):
    path = tmp_path / "grpo_state_0.pt"
    path.write_bytes(saved(1000))
    assert load_plain(path)["x"].sum() == 0
    with zipfile.ZipFile(path, "a") as file:
        largest = max(file.infolist(), key=lambda part: part.file_size)
        for number in range(3):
            twin = zipfile.ZipInfo(f"archive/data/{9 + number}")
            for name in ("header_offset", "file_size", "compress_size", "CRC"):
                setattr(twin, name, getattr(largest, name))
            file.filelist.append(twin)
        file._didModify = True
    with pytest.raises(CheckpointMismatch, match="not an uncompressed archive"):
        load_plain(path)


@pytest.mark.parametrize("kind", KINDS, **NAMED)
def test_no_saved_recipe_stops_a_run_or_shows_what_is_outside(tmp_path, tiny_folder, kind):
    private = secrets(tmp_path / "private")
    (private / "recipe.yaml").write_text(f"system_prompt: {SECRET}\n")
    run = tmp_path / "run"
    run.mkdir()
    kind(run / "recipe.yaml", private)
    recipe = load_recipe(
        "countdown/tiny", {"model_name_or_path": str(tiny_folder), "output_dir": str(run)}
    )
    shown = str(differences(recipe, run))
    assert SECRET not in shown


@pytest.mark.parametrize("kind", SPECIAL, **NAMED)
@pytest.mark.parametrize("read", [read_yaml, accelerate_settings])
def test_recipes_are_plain_files(tmp_path, kind, read):
    path = tmp_path / "recipe.yaml"
    kind(path, tmp_path)
    with pytest.raises((RecipeError, OSError)):
        read(path)


def test_a_deep_accelerate_config_is_refused(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("a: " + "[" * 50_000)
    with pytest.raises(ValueError, match="deeper than 100"):
        accelerate_settings(path)


@pytest.mark.parametrize("kind", SPECIAL, **NAMED)
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "a.index.json", "tokenizer.json"]
)
def test_models_and_adapters_have_no_special_files(tmp_path, capsys, kind, name):
    folder = tmp_path / "model"
    folder.mkdir()
    for other in ("config.json", "adapter_config.json", "model.safetensors"):
        (folder / other).write_text("{}")
    (folder / name).unlink(missing_ok=True)
    kind(folder / name, tmp_path)
    with pytest.raises(ValueError, match="not a plain file"):
        check_model_folder(folder)
    assert main(["merge", "--model", str(folder)]) == 2
    assert main(["eval", "--config", "countdown/tiny", "--model", str(folder)]) == 2
    told = capsys.readouterr().err
    assert told.count(f"{name} is a FIFO, a device or a socket") == 2
    (folder / "adapter_config.json").unlink()
    assert "not a plain file" in next(folder_faults(folder))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_models_have_no_files_of_a_terabyte_that_is_on_no_disk(tmp_path, capsys, name):
    (tmp_path / "config.json").write_text("{}")
    endless_line(tmp_path / name, tmp_path)
    assert main(["merge", "--model", str(tmp_path)]) == 2
    assert main(["eval", "--config", "countdown/tiny", "--model", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("a sparse file") == 2
    assert "a sparse file" in next(folder_faults(tmp_path))


@pytest.mark.parametrize(
    "index",
    [
        '{"weight_map": {"a": 5, "b": "x"}}',
        '{"weight_map": {"a": []}}',
        "[" * 100_000,
        "[]",
        "\xff",
        '{"weight_map": 3}',
    ],
)
def test_no_index_of_weights_stops_the_check(tmp_path, index):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_bytes(index.encode("latin-1"))
    assert list(folder_faults(tmp_path))


def begin(data: str, model: str, folder: str) -> None:
    limit_this_process()
    sys_exit = main(["init", data, model, "--output", folder, "--yes"])
    assert sys_exit == 2


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows.csv", "rows.json"])
@pytest.mark.parametrize("kind", SPECIAL, **NAMED)
def test_data_files_are_plain(tmp_path, tiny_folder, kind, name):
    kind(tmp_path / name, tmp_path)
    reader = Forked(begin, str(tmp_path / name), str(tiny_folder), str(tmp_path / "mine"))
    assert reader.wait() == 0, reader.printed[-3000:]


def test_an_endless_first_row_is_refused(tmp_path, tiny_folder):
    path = tmp_path / "rows.jsonl"
    path.touch()
    os.truncate(path, ENDLESS)
    reader = Forked(begin, str(path), str(tiny_folder), str(tmp_path / "mine"))
    assert reader.wait() == 0, reader.printed[-3000:]
    assert "a sparse file" in reader.printed


def test_a_long_first_row_is_refused(tmp_path, tiny_folder):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"prompt": "' + b"x" * 40 * 2**20)
    reader = Forked(begin, str(path), str(tiny_folder), str(tmp_path / "mine"))
    assert reader.wait() == 0, reader.printed[-3000:]
    assert "a line has more than" in reader.printed


def test_a_small_parquet_file_of_endless_rows_is_refused(tmp_path, tiny_folder):
    path = tmp_path / "rows.parquet"
    array = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), pa.array(["x" * 100]))
    table = pa.table({"prompt": pa.chunked_array([array] * 150_000)})
    parquet.write_table(table, path, row_group_size=len(table))
    assert path.stat().st_size < 2**24
    reader = Forked(begin, str(path), str(tiny_folder), str(tmp_path / "mine"))
    assert reader.wait() == 0, reader.printed[-3000:]
    assert "row_group_size=10_000" in reader.printed


LONG = "x" * 2**20
NO_OBJECT = b'{"prompt": "a"}\n'


def repeated(times: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), pa.array([LONG]))


def long_repeated_value(path: Path) -> None:
    parquet.write_table(pa.table({"prompt": repeated(100_000)}), path)


def long_repeated_value_in_messages(path: Path) -> None:
    messages = pa.StructArray.from_arrays([repeated(20_000)], ["content"])
    conversation = pa.ListArray.from_arrays(pa.array([0, 20_000], pa.int32()), messages)
    parquet.write_table(pa.table({"prompt": conversation}), path, store_schema=False)


def long_differences(path: Path) -> None:
    table = pa.table({"prompt": [LONG] * 10})
    parquet.write_table(
        table, path, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY", compression="zstd"
    )


def packed_numbers(path: Path) -> None:
    table = pa.table({"prompt": pa.array(["x" * 100] * 100_000)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_stream(file, table.schema, options=options) as writer,
    ):
        writer.write_table(table)


def deep_list(path: Path) -> None:
    path.write_text('{"prompt": ' + "[" * 200_000 + "]" * 200_000 + "}\n")


def deep_mapping_later(path: Path) -> None:
    deep = '{"prompt": ' + '{"a": ' * 100_000 + "1" + "}" * 100_001 + "\n"
    path.write_bytes(NO_OBJECT * 1000 + deep.encode())


def deep_and_damaged(path: Path) -> None:
    path.write_text('{"prompt": ' + '[1, {"a": ' * 100_000 + "\n")


def new_names(path: Path) -> None:
    path.write_text("".join(f'{{"k{number}": 1}}\n' for number in range(20_000)))


def new_names_of_answers(path: Path) -> None:
    lines = (f'{{"prompt": {{"k{n % 9000}": 1}}}}\n' for n in range(20_000))
    path.write_text("".join(lines))


def many_columns(path: Path) -> None:
    path.write_text(",".join(f"c{number}" for number in range(100_000)) + "\n")


def later_hole(path: Path) -> None:
    path.write_bytes(NO_OBJECT * 1000)
    os.truncate(path, ENDLESS)


def later_long_line(path: Path) -> None:
    path.write_bytes(NO_OBJECT * 1000 + b'{"prompt": "' + b"x" * 40 * 2**20 + b'"}\n')


BOMBS = [
    (long_repeated_value, ".parquet", "row_group_size=10_000"),
    (long_repeated_value_in_messages, ".parquet", "row_group_size=10_000"),
    (long_differences, ".parquet", "DELTA_BYTE_ARRAY"),
    (deep_list, ".jsonl", "nested deeper than 100 levels"),
    (deep_list, ".json", "nested deeper than 100 levels"),
    (deep_mapping_later, ".jsonl", "line 1001 is nested deeper"),
    (deep_and_damaged, ".jsonl", "nested deeper than 100 levels"),
    (new_names, ".jsonl", "different column names"),
    (new_names_of_answers, ".jsonl", "most of the table would be empty"),
    (many_columns, ".csv", "10,000 commas or more"),
    (later_hole, ".jsonl", "a sparse file"),
    (later_hole, ".csv", "a sparse file"),
    (later_hole, ".json", "a sparse file"),
    (later_hole, ".parquet", "a sparse file"),
    (later_long_line, ".jsonl", "a line has more than"),
]


def open_rows(path: str, reason: str) -> None:
    limit_this_process()
    with pytest.raises(ValueError, match=reason):
        open_dataset(path, streaming=True)


@pytest.mark.parametrize("in_folder", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize(("write", "ending", "reason"), BOMBS)
def test_small_files_of_enormous_tables_are_refused(tmp_path, write, ending, reason, in_folder):
    path = tmp_path / f"rows{ending}"
    write(path)
    assert path.stat().st_blocks * 512 < 2**26
    reader = Forked(open_rows, str(tmp_path if in_folder else path), reason)
    assert reader.wait() == 0, reader.printed[-3000:]


def test_blank_lines_are_neither_decoded_nor_counted_as_rows(tmp_path, monkeypatch):
    decoded = []

    def loads(document, **options):
        decoded.append(document)
        return json.JSONDecoder(**options).decode(document.decode())

    monkeypatch.setattr(foreign_rows, "MAX_CELLS", 100)
    monkeypatch.setattr(foreign_rows, "json", SimpleNamespace(loads=loads))
    path = tmp_path / "rows.jsonl"
    row = json.dumps({f"c{number}": number for number in range(20)}).encode() + b"\n"
    path.write_bytes(row + b"\n \n" * 1000)
    foreign_rows.check_rows(path)
    assert decoded == [row]
    assert list(open_dataset(str(path), streaming=True)) == [json.loads(row)]


def test_packed_tables_and_files_are_refused(tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    for name in ("state.json", "dataset_info.json"):
        (folder / name).write_text("{}")
    packed_numbers(folder / "data-00000-of-00001.arrow")
    with pytest.raises(ValueError, match=r"it is compressed\. Save"):
        open_dataset(str(folder))
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl.gz").write_bytes(gzip.compress(NO_OBJECT))
    with pytest.raises(ValueError, match="it is compressed, so its real size"):
        open_dataset(str(tmp_path / "rows"))


def test_honest_files_of_all_types_are_read(tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": "ab" * 10}] * 3, "answer": f"{n}", "deep": [[[n]]]}
        for n in range(200)
    ]
    saved = Dataset.from_list(rows)
    saved.to_parquet(tmp_path / "rows.parquet")
    saved.to_json(tmp_path / "rows.jsonl")
    saved.to_csv(tmp_path / "rows.csv")
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    saved.save_to_disk(tmp_path / "saved")
    (tmp_path / "folder").mkdir()
    (tmp_path / "rows.jsonl").rename(tmp_path / "folder" / "train.jsonl")
    for name in ("rows.parquet", "rows.csv", "rows.json", "saved", "folder"):
        read = list(open_dataset(str(tmp_path / name), streaming=True))
        assert [str(row["answer"]) for row in read] == [row["answer"] for row in rows], name


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.__name__ in LINKS_OUT or kind in SPECIAL], **NAMED
)
def test_data_folders_have_plain_files_and_no_links_out(tmp_path, kind):
    private = secrets(tmp_path / "private")
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "good.jsonl").write_text('{"prompt": "a"}\n')
    kind(folder / "inner" / "rows.jsonl", private)
    with pytest.raises(ValueError, match="cannot be read"):
        open_dataset(str(folder))


def test_data_folders_with_links_inside_are_read(tmp_path):
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "rows.jsonl").write_text('{"prompt": "a"}\n')
    (folder / "train.jsonl").symlink_to("inner/rows.jsonl")
    assert next(iter(open_dataset(str(folder), streaming=True)))["prompt"] == "a"


def test_a_first_recipe_is_written_over_no_file_behind_a_link(tmp_path, tiny_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    private = tmp_path / "private"
    private.mkdir()
    data = tmp_path / "rows.jsonl"
    data.write_text(
        "".join(json.dumps({"question": f"{n}?", "answer": f"{n}"}) + "\n" for n in range(30))
    )
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("README.md", "rewards.py"):
        (private / name).write_text(SECRET)
        (mine / name).symlink_to(private / name)
    assert main(["init", str(data), str(tiny_folder), "--yes"]) in (0, 1)
    assert (mine / "recipe.yaml").is_file()
    assert {path.read_text() for path in private.iterdir()} == {SECRET}
    (mine / "recipe.yaml").unlink()
    (mine / "recipe.yaml").symlink_to(private / "recipe.yaml")
    assert main(["init", str(data), str(tiny_folder), "--yes"]) == 2
    assert not (private / "recipe.yaml").exists()


def read_rates(path: str) -> None:
    limit_this_process()
    with pytest.raises((OSError, ValueError)):
        read_pass_rates(Path(path), ["countdown"], 1.0)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if kind.__name__ not in ("nothing", "open_file", "no_content")],
    **NAMED,
)
def test_pass_rates_come_from_plain_files(tmp_path, kind):
    kind(tmp_path / "rates.jsonl", secrets(tmp_path / "private"))
    if kind.__name__ == "circle":
        (tmp_path / "rates.jsonl").unlink()
        fifo(tmp_path / "rates-0001.jsonl", tmp_path)
    reader = Forked(read_rates, str(tmp_path / "rates.jsonl"))
    assert reader.wait() == 0, reader.printed[-3000:]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.__name__ != "no_numbers"], **NAMED)
def test_no_record_of_stages_stops_a_demo(tmp_path, kind):
    private = tmp_path / "private"
    private.mkdir()
    (private / "stages.json").write_text('{"warm start": {"done": true}}')
    (tmp_path / "demo").mkdir()
    kind(tmp_path / "demo" / "stages.json", private)
    assert Stages(tmp_path / "demo", 1).done == {}
