"""Data in ShareGPT's form, `conversations` of `from` and `value`, at each door."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset

from grpo_ext.preflight.propose import propose
from grpo_ext.tasks.prompts import Prompts
from grpo_ext.tasks.sharegpt import chat_messages
from grpo_ext.trainer.run_output import check_prompt

CONVERSATION = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "2 + 2?"},
    {"from": "gpt", "value": "4"},
    {"from": "human", "value": "And 3 + 4?"},
    {"from": "gpt", "value": "7"},
]
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And 3 + 4?"},
    {"role": "assistant", "content": "7"},
]


def test_roles_and_texts_of_a_conversation():
    before = json.dumps(CONVERSATION)
    assert chat_messages(CONVERSATION) == MESSAGES
    assert json.dumps(CONVERSATION) == before
    for other in ("a text", MESSAGES, [], None, [{"from": "human"}], 7):
        assert chat_messages(other) is other


def test_a_role_without_a_counterpart_is_named():
    called = [*CONVERSATION, {"from": "function_call", "value": "{}"}]
    with pytest.raises(ValueError, match="a message is from 'function_call'"):
        chat_messages(called)


def test_the_task_takes_the_answer_out_of_the_prompt(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"conversations": CONVERSATION, "id": 1}) + "\n")
    task = Prompts(prompt_column="conversations", answer_column="solution")
    [row] = task.dataset(dataset_name=str(path))
    assert row["prompt"] == MESSAGES[:-1]
    assert row["solution"] == "7"
    [row] = Prompts(prompt_column="conversations").dataset(dataset_name=str(path))
    assert row["prompt"] == MESSAGES


def test_a_first_recipe_reads_it():
    found = propose([{"conversations": CONVERSATION}])
    assert (found.prompt, found.answer_column) == ("conversations", "solution")
    assert found.reward == "number"


def test_prompts_of_this_form_are_refused_in_python_with_the_remedy():
    rows = Dataset.from_list([{"prompt": CONVERSATION[:2]}])
    with pytest.raises(ValueError, match=r"rows.map\(lambda row: .*chat_messages"):
        check_prompt(rows)
    check_prompt(rows.map(lambda row: {"prompt": chat_messages(row["prompt"])}))
