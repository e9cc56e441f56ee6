"""Tasks of the lm-evaluation-harness whose rows are local files: word problems, and a choice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.forked import LIMIT

NAMES = ("local_sums", "local_choices")
# the names of our figures, and of the harness's own
FIGURES = {
    "local_sums": {
        "exact_match (strict-match)": "exact_match{},strict-match",
        "exact_match (flexible-extract)": "exact_match{},flexible-extract",
    },
    "local_choices": {"acc": "acc{},none", "acc_norm": "acc_norm{},none"},
}
SUMS = """
task: local_sums
dataset_path: json
dataset_kwargs:
  data_files: {{train: {folder}/sums_train.jsonl, test: {folder}/sums_test.jsonl}}
output_type: generate_until
training_split: train
fewshot_split: train
test_split: test
num_fewshot: 2
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
    regexes_to_ignore: [",", "\\\\$", "(?s).*#### ", "\\\\.$"]
generation_kwargs:
  until: ["Question:", "<|im_end|>"]
  do_sample: false
  max_gen_toks: {max_new_tokens}
filter_list:
  - name: strict-match
    filter: [{{function: regex, regex_pattern: "#### (-?[0-9.,]+)"}}, {{function: take_first}}]
  - name: flexible-extract
    filter:
      - {{function: regex, group_select: -1, regex_pattern: "(-?[$0-9.,]{{2,}})|(-?[0-9]+)"}}
      - {{function: take_first}}
metadata: {{version: 3.0}}
"""
CHOICES = """
task: local_choices
dataset_path: json
dataset_kwargs:
  data_files: {{test: {folder}/choices_test.jsonl}}
output_type: multiple_choice
test_split: test
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1.0}}
"""


def write_tasks(
    folder: Path,
    train: list[dict],
    test: list[dict],
    choices: list[dict],
    max_new_tokens: int,
) -> None:
    """Write the tasks `local_sums`, in GSM8K's form, and `local_choices`, with their rows.

    Args:
        folder: an empty folder.
        train: rows with `question` and `answer`, for few-shot examples.
        test: rows with `question` and `answer`, to evaluate on.
        choices: rows with `question`, `choices` and the index `answer`.
        max_new_tokens: the maximum length of a completion.
    """
    for name, rows in (("sums_train", train), ("sums_test", test), ("choices_test", choices)):
        lines = [json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    settings = {"folder": folder, "max_new_tokens": max_new_tokens}
    (folder / "local_sums.yaml").write_text(SUMS.format(**settings))
    (folder / "local_choices.yaml").write_text(CHOICES.format(**settings))


def write_tiny_tasks(folder: Path) -> Path:
    """Write tasks in the words of the tiny models, and return their folder."""
    sums = []
    for first in range(1, 9):
        for second in range(1, 5):
            sums.append({"question": f"{first} + {second}", "answer": f"#### {first + second}"})
    choices = []
    for i, row in enumerate(sums):
        choices.append({"question": row["question"], "choices": ["+", "-", "="], "answer": i % 3})
    write_tasks(folder, sums[:4], sums[4:], choices, max_new_tokens=8)
    return folder


def run_command_line(
    model: str | Path, tasks: Path, folder: Path, limit: int, batch_size: int
) -> None:
    """Evaluate a model with the harness's own command, with its chat template.

    Args:
        model: the folder of the model.
        tasks: the folder of the tasks.
        folder: the folder to write to.
        limit: the number of documents of each task.
        batch_size: the number of sequences in a batch.
    """
    words = ["--model", "hf", "--model_args", f"pretrained={model},dtype=float32"]
    words += ["--tasks", ",".join(NAMES), "--include_path", str(tasks), "--device", "cpu"]
    words += ["--limit", str(limit), "--batch_size", str(batch_size), "--apply_chat_template"]
    words += ["--output_path", str(folder), "--log_samples"]
    command = [sys.executable, "-m", "lm_eval", "run", *words]
    subprocess.run(command, check=True, timeout=LIMIT, capture_output=True)


def assert_as_theirs(path: Path, model: str, folder: Path) -> None:
    """Assert that figures, errors, prompts and responses are those of the harness's command.

    Args:
        path: the file that `grpo-ext eval --suite --output` wrote.
        model: the name of the model in it.
        folder: the folder that the harness's command wrote.
    """
    figures = json.loads(path.read_text())["models"][model]
    [theirs] = folder.rglob("results_*.json")
    results = json.loads(theirs.read_text())["results"]
    completions = json_lines(path.with_name(f"{path.stem}_completions.jsonl"))
    for task, names in FIGURES.items():
        for name, key in names.items():
            assert figures[task][name] == results[task][key.format("")]
            assert figures[task][f"{name}_se"] == results[task][key.format("_stderr")]
        lines = [line for line in completions if (line["model"], line["task"]) == (model, task)]
        [theirs] = folder.rglob(f"samples_{task}_*.jsonl")
        samples = json_lines(theirs)
        assert len(lines) == len(samples) > 0
        for line, sample in zip(lines, samples, strict=True):
            assert (line["doc_id"], line["filter"]) == (sample["doc_id"], sample["filter"])
            assert line["prompt"] == sample["arguments"]["gen_args_0"]["arg_0"]
            assert as_texts(line["responses"]) == as_texts(sample["resps"])


def json_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def as_texts(value: object) -> object:
    """Nested lists with texts in place of numbers, as the harness writes log-probs."""
    return [as_texts(entry) for entry in value] if isinstance(value, list) else str(value)
