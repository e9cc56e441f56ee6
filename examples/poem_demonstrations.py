"""Write demonstrations for `recipes/poem/qwen2.5-7b-lora-sft.yaml`.

The answers are the last lines of the training quatrains. The thoughts are written by a rule: they
state the form of the poem, the tones of its last line, and its rhyme group.
"""

import json
from pathlib import Path

from grpo_ext.rewards.poem import judge
from grpo_ext.tasks.poem import Poem

task = Poem()
demonstrations = []
for quatrain in task.generate("train"):
    row = task.example(quatrain)
    verdict = judge([*row["lines"], row["last_line"]])
    tones = verdict.pattern[-1]
    thoughts = f"这首诗是{verdict.form}，末句的平仄是{tones}，韵部是{verdict.rhyme_group}。"
    text = f"<think>\n{thoughts}\n</think>\n<answer>\n{row['last_line']}\n</answer>"
    completion = [{"role": "assistant", "content": text}]
    demonstrations.append({"prompt": row["prompt"], "completion": completion})

path = Path("runs/poem-demonstrations.jsonl")
path.parent.mkdir(exist_ok=True)
lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in demonstrations]
path.write_text("".join(lines), encoding="utf-8")
print(f"{len(demonstrations)} demonstrations in {path}")
