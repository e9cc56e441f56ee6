"""A null that a prompt or a reward would read is refused: templates write it out as "None"."""

from __future__ import annotations

import json

import pytest

from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tasks.gsm8k import GSM8K
from grpo_ext.tasks.prompts import Prompts

ROW = {"question": "1+1?", "answer": "#### 2", "hint": None, "nums": [1, 2], "target": 3}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "task, column",
    [
        (GSM8K(), "question"),
        (GSM8K(), "answer"),
        (Prompts(user_prompt="{question}"), "question"),
        (Prompts(prompt_column="question"), "question"),
        (Countdown(), "target"),
    ],
)
def test_a_null_that_is_read_is_refused(tmp_path, streaming, task, column):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, (ROW, {**ROW, column: None}))))
    (tmp_path / "whole.jsonl").write_text(json.dumps(ROW))  # the null `hint` is read by nobody
    assert (
        len(list(task.dataset(dataset_name=str(tmp_path / "whole.jsonl"), streaming=streaming)))
        == 1
    )
    with pytest.raises(ValueError, match=f"the column '{column}' is null in the row"):
        list(task.dataset(dataset_name=str(path), streaming=streaming))
