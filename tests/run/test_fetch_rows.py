"""`grpo-ext data`: the files hold the rows of the dataset, and are never replaced by others."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import yaml
from datasets import Dataset, DatasetDict, Image

from grpo_ext.cli.main import main
from grpo_ext.recipe.load import load_recipe
from grpo_ext.run.fetch_rows import (
    Source,
    fetch_rows,
    file_name,
    find_source,
    license_of,
    packaged_sources,
)
from grpo_ext.run.from_recipe import eval_rows, train_rows

ROWS = [
    {"question": "1 + 1 =\u2028?", "answer": "It is 2.\n#### 2", "share": 0.1234567890123456},
    {"question": "二加二？", "answer": "#### 4", "share": None},
    {"question": "NaN", "answer": "#### 5", "share": math.inf},
]
CARD = "---\nlicense: mit\n---\n# Sums\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of files with two splits and a card, as `datasets` downloads it from the hub."""
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "owner" / "sums"
    source.mkdir(parents=True)
    Dataset.from_list(ROWS).to_parquet(str(source / "train-0.parquet"))
    Dataset.from_list(ROWS[:1]).to_parquet(str(source / "test-0.parquet"))
    (source / "README.md").write_text(CARD)
    return source


def advised(printed: str) -> dict[str, str]:
    """The keys of a recipe that the command printed."""
    return yaml.safe_load(printed.partition("set these keys in a recipe:\n")[2])


def test_files_have_the_rows_of_both_splits_and_a_recipe_reads_them(folder, tmp_path, capsys):
    assert main(["data", "owner/sums", "--out", "rows"]) == 0
    printed = capsys.readouterr().out
    assert "owner/sums: license mit\n" in printed
    assert "3 rows of the split train in rows/sums-train.jsonl" in printed
    assert "1 row of the split test in rows/sums-test.jsonl" in printed
    written = (tmp_path / "rows" / "sums-train.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in written[:-1]] == [*ROWS[:2], {**ROWS[2], "share": None}]
    assert written[-1] == ""
    shutil.rmtree(folder)
    keys = advised(printed)
    assert set(keys) == {"dataset_name", "eval_dataset_name"}
    recipe = load_recipe(None, {"model_name_or_path": "m", "task": "gsm8k", **keys})
    assert train_rows(recipe)["question"] == [row["question"] for row in ROWS]
    assert eval_rows(recipe)["solution"] == ["It is 2.\n#### 2"]


def test_a_file_with_other_rows_is_kept(folder, tmp_path, capsys):
    other = tmp_path / "sums-train.jsonl"
    other.write_text("mine\n")
    assert main(["data", "owner/sums"]) == 2
    assert capsys.readouterr().err.endswith(
        "grpo-ext: sums-train.jsonl already exists with different content. Move it, or choose "
        "another folder with --out.\n"
    )
    assert other.read_text() == "mine\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner", "sums-train.jsonl"]


def test_the_same_rows_may_be_fetched_again(folder, tmp_path):
    first = fetch_rows(Source("owner/sums"), tmp_path)
    content = first[0].path.read_bytes()
    assert fetch_rows(Source("owner/sums"), tmp_path) == first
    assert first[0].path.read_bytes() == content


def test_a_part_of_a_split_has_a_file_of_its_own(folder, tmp_path):
    [part] = fetch_rows(Source("owner/sums"), tmp_path, ["train[1:3]"])
    assert part.path.name == "sums-train-1-3.jsonl"
    assert part.count == len(part.path.read_text().splitlines()) == 2


def test_the_two_parts_of_a_split_have_two_files(folder, tmp_path):
    parts = fetch_rows(Source("owner/sums"), tmp_path, ["train[:1]", "train[1:]"])
    assert [part.path.name for part in parts] == ["sums-train-0-1.jsonl", "sums-train-1-end.jsonl"]
    assert [part.count for part in parts] == [1, 2]


def test_names_have_the_configuration_and_the_unit_of_a_slice():
    source = Source("openai/gsm8k", "socratic")
    assert file_name(source, "train") == "gsm8k-socratic-train.jsonl"
    assert file_name(source, "train[:10%]") == "gsm8k-socratic-train-0-10pct.jsonl"


def test_splits_of_the_same_file_are_refused_before_one_is_written(folder, tmp_path, capsys):
    assert main(["data", "owner/sums", "--split", "test", "--split", "test"]) == 2
    assert "the splits test and test would both be written to" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["owner"]


def test_rows_of_test_are_for_evaluation_in_any_order(folder, capsys):
    assert main(["data", "owner/sums", "--split", "test"]) == 0
    assert advised(capsys.readouterr().out) == {"eval_dataset_name": "sums-test.jsonl"}
    assert main(["data", "owner/sums", "--split", "test", "--split", "train[:2]"]) == 0
    assert advised(capsys.readouterr().out) == {
        "eval_dataset_name": "sums-test.jsonl",
        "dataset_name": "sums-train-0-2.jsonl",
    }


def test_a_split_that_is_not_there_is_named_with_those_that_are(folder, tmp_path, capsys):
    assert main(["data", "owner/sums", "--split", "validation"]) == 2
    assert "has no split 'validation'. Its splits: train, test" in capsys.readouterr().err


def test_images_are_refused_with_what_to_do(tmp_path, capsys):
    import PIL.Image

    rows = {"question": ["?"], "image": [PIL.Image.new("RGB", (2, 2))]}
    pictures = Dataset.from_dict(rows).cast_column("image", Image())
    DatasetDict({"train": pictures}).save_to_disk(str(tmp_path / "pictures"))
    assert main(["data", str(tmp_path / "pictures"), "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "a row cannot be written as JSON" in told and "save_to_disk(FOLDER)" in told
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]


def test_recipes_of_the_package_name_their_data(capsys):
    sources = packaged_sources()
    assert sources["gsm8k"] == Source("openai/gsm8k", "main")
    assert sources["math"].name == "DigitalLearningGmbH/MATH-lighteval"
    assert main(["data"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(sources) and "gsm8k      openai/gsm8k (main)" in listed
    assert find_source("gsm8k", "socratic") == Source("openai/gsm8k", "socratic")
    assert find_source("an/other") == Source("an/other")


def test_an_unknown_name_suggests_a_known_one(capsys):
    assert main(["data", "gsm8"]) == 2
    assert capsys.readouterr().err == (
        "grpo-ext: unknown dataset 'gsm8'. Did you mean 'gsm8k'? To fetch another dataset from "
        "the hub, pass its id as owner/name.\n"
    )


def test_without_the_hub_the_message_says_what_to_do(tmp_path, capsys):
    """`tests/conftest.py` keeps the hub away."""
    assert main(["data", "gsm8k", "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("grpo-ext: the rows of openai/gsm8k (main) cannot be fetched: ")
    assert "asking the hub for it failed" in told
    assert told.endswith(
        "run the same command on a machine that has one, and copy the files here.\n"
    )
    assert len(told.splitlines()) == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "card, license",
    [
        ("license: mit", "mit"),
        ("license: [mit, cc-by-4.0]", "mit, cc-by-4.0"),
        ("license: {a: b}", "unknown"),
        ("license: 'm\\e[31m'", r"m\e[31m"),
        ('license: "m\\e[31m"', r"m\x1b[31m"),
        ("tags: [math]", "unknown"),
        ("license: [", "unknown"),
    ],
)
def test_the_license_is_that_of_the_card(card, license, tmp_path):
    (tmp_path / "README.md").write_text(f"---\n{card}\n---\n")
    assert license_of(Source(str(tmp_path))) == license


def test_a_folder_without_a_card_has_an_unknown_license(tmp_path):
    assert license_of(Source(str(tmp_path))) == "unknown"
