"""Rows with prompts of their own: kept as they are, or written from columns."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset, DatasetDict

from grpo_ext.tasks.open_dataset import open_dataset
from grpo_ext.tasks.prompts import Prompts

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("settings", "row", "prompt"),
    [
        ({}, {"prompt": "Once"}, "Once"),
        ({}, {"prompt": MESSAGES}, MESSAGES),
        ({"prompt_column": "q"}, {"q": "Once", "prompt": "x"}, "Once"),
        ({"system_prompt": "S"}, {"prompt": "hi"}, [{"role": "system", "content": "S"}, *MESSAGES]),
        (
            {"system_prompt": "S"},
            {"prompt": MESSAGES},
            [{"role": "system", "content": "S"}, *MESSAGES],
        ),
        (
            {"user_prompt": "{a} or {b}?"},
            {"a": 1, "b": "{c}"},
            [{"role": "user", "content": "1 or {c}?"}],
        ),
        (
            {"user_prompt": "{q}\n{a:letters}\n{b[text]:lines}"},
            {"q": "Why?", "a": ["x", 2], "b": {"text": ["y", "z"]}},
            [{"role": "user", "content": "Why?\nA) x\nB) 2\ny\nz"}],
        ),
        (
            {"user_prompt": "{instruction}\n\n{input}"},
            {"instruction": "Say hi.", "input": ""},
            [{"role": "user", "content": "Say hi."}],
        ),
        (
            {"user_prompt": "{instruction}\n{input}"},
            {"instruction": "Copy.", "input": "a line\n"},
            [{"role": "user", "content": "Copy.\na line\n"}],
        ),
    ],
)
def test_a_row_becomes_a_prompt(settings, row, prompt):
    assert Prompts(**settings).example({**row, "limit": 3}) == {**row, "limit": 3, "prompt": prompt}


def test_what_cannot_be_used_is_told():
    with pytest.raises(ValueError, match="braces that do not enclose a field"):
        Prompts(user_prompt="{a")
    with pytest.raises(
        ValueError, match=r"reads the column 'b', which the data lacks\. .* columns a\."
    ):
        Prompts(user_prompt="{a}{b}").example({"a": 1})
    with pytest.raises(ValueError, match="reads the column 'prompt', which the data lacks"):
        Prompts().example({"question": "hi"})
    with pytest.raises(ValueError, match="reads the column 'answer', which the data lacks"):
        Prompts(rename_columns={"solution": "answer"}).example({"prompt": "hi"})
    with pytest.raises(ValueError, match="The task 'prompts' needs a dataset"):
        Prompts().dataset()
    with pytest.raises(ValueError, match="needs a list, but its value is 'red'"):
        Prompts(user_prompt="{a:letters}").example({"a": "red"})
    with pytest.raises(ValueError, match="a list of 27 options with `:letters`, but there are"):
        Prompts(user_prompt="{a:letters}").example({"a": [str(n) for n in range(27)]})
    with pytest.raises(ValueError, match="user_prompt has a field without the name of a column"):
        Prompts(user_prompt="{a} {}").prompt({"a": "red"})


@pytest.mark.parametrize(
    "template", ["{choices[4]}", "{choices[x]}", "{about[level]}", "{about.level}"]
)
def test_an_entry_that_a_row_lacks_is_told(template):
    row = {"choices": ["a", "b"], "about": {"kind": "x"}}
    with pytest.raises(ValueError, match="has a field that a row cannot fill"):
        Prompts(user_prompt=template).prompt(row)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": 2\n'),
        ("a.csv", "a,b\n1,2\n3,4,5\n"),
        ("a.parquet", "PAR1xPAR1"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name} cannot be read: "):
        open_dataset(str(tmp_path / name))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_text(content)
    with pytest.raises(ValueError):
        open_dataset(str(folder))


def test_rows_of_a_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"Say {i}.", "limit": i}) + "\n" for i in range(3))
    )
    rows = list(Prompts(system_prompt="Be brief.").dataset(dataset_name=str(path)))
    assert [row["limit"] for row in rows] == [0, 1, 2]
    assert rows[2]["prompt"][1] == {"role": "user", "content": "Say 2."}


def test_a_saved_dataset_dict_gives_its_splits(tmp_path):
    splits = {name: Dataset.from_list([{"prompt": name}] * 3) for name in ("train", "held_out")}
    DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    for streaming in (False, True):
        rows = Prompts().dataset(
            "held_out", dataset_name=str(tmp_path / "saved"), streaming=streaming
        )
        assert [row["prompt"] for row in rows] == ["held_out"] * 3
    with pytest.raises(
        ValueError, match=r"has no split 'test'\. Its splits: train, held_out\. Set"
    ):
        Prompts().dataset("test", dataset_name=str(tmp_path / "saved"))


def test_a_dot_reaches_into_a_mapping():
    row = {"prompt": "hi", "reward_model": {"ground_truth": "72"}, "a.b": 1}
    task = Prompts(rename_columns={"solution": "reward_model.ground_truth", "c": "a.b"})
    example = task.example(row)
    assert example["solution"] == "72" and example["c"] == 1
    with pytest.raises(ValueError, match="in a row, 'truth' is missing or null"):
        Prompts(rename_columns={"solution": "reward_model.truth"}).example(row)
    with pytest.raises(ValueError, match="reads the column 'nothing', which the data lacks"):
        Prompts(rename_columns={"solution": "nothing.at.all"}).example(row)
    assert Prompts(prompt_column="reward_model.ground_truth").example(row)["prompt"] == "72"


def test_the_assistants_last_message_becomes_a_column():
    talk = [*MESSAGES, {"role": "assistant", "content": "Hello."}]
    task = Prompts(prompt_column="messages", answer_column="solution", system_prompt="S")
    example = task.example({"messages": talk})
    assert example["prompt"] == [{"role": "system", "content": "S"}, *MESSAGES]
    assert example["solution"] == "Hello." and example["messages"] == talk
    for wrong in (MESSAGES, "hi", [], ["hi"]):
        with pytest.raises(ValueError, match="end with an assistant message"):
            task.example({"messages": wrong})


@pytest.mark.parametrize("content", ["prompt,answer\n", "prompt,answer", "prompt,answer\n\n"])
def test_a_csv_with_only_a_header_has_no_rows(tmp_path, content):
    path = tmp_path / "rows.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"rows\.csv has no rows, only a header"):
        open_dataset(str(path))
