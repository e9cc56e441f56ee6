"""Names of dataset columns that several packages use, and functions that look them up in a row."""

from collections.abc import Collection, Mapping

TASK = "task"  # the column that names the row's task, in a dataset of several tasks
ENVIRONMENT = "environment"  # the column that names the row's environment, if there are several
IMAGES = ("image", "images")  # columns that TRL adds to the prompt
SINGLE_TURN = "single_turn"  # the task of rows without an environment, if other rows have one

# Columns that may hold the correct answer; the first that a row has is used.
ANSWERS = (
    "solution", "answer", "answers", "last_line", "target", "ground_truth", "label", "output",
    "response", "completion", "expected", "gold", "final_answer", "reference",
    "correct_answer", "gold_answer", "answerKey", "answer_key", "answer_idx", "answer_index",
    "answer_number", "correct_option", "cop", "correct",
    "summary", "highlights",
)  # fmt: skip
# Columns that may hold a part of the problem, in addition to an instruction or a question.
CONTEXTS = (
    "input", "context", "passage", "document", "article", "background", "premise", "hypothesis",
    "table", "body", "paragraph", "story", "choices", "options", "endings",
)  # fmt: skip
# verl, SQuAD, TriviaQA and others keep the answer in a mapping.
NESTED_ANSWERS = (
    "reward_model.ground_truth", "extra_info.answer", "answers.text", "answer.value",
    "answers_spans.spans", "metadata.answer", "verification_info.ground_truth",
)  # fmt: skip


def has_task(row: Mapping[str, object], tasks: Collection[str] | None) -> bool:
    """Return whether the row's task is one of `tasks`; always true if `tasks` is `None`."""
    return tasks is None or row.get(TASK) in tasks


def answer_column(row: dict[str, object]) -> str | None:
    """Return the name of the column that holds the row's correct answer; `None` if there is none.

    The names in `ANSWERS` are tried first, then those in `NESTED_ANSWERS`; the first one with a
    value in the row is returned. A name in `NESTED_ANSWERS` has the form `column.key`, for an
    answer inside a mapping. `None`, empty strings and empty lists do not count as values; in the
    columns of `ANSWERS`, mappings do not count either.
    """
    for name in ANSWERS:
        if row.get(name) not in (None, "", []) and not isinstance(row[name], dict):
            return name
    for path in NESTED_ANSWERS:
        column, _, key = path.partition(".")
        mapping = row.get(column)
        if isinstance(mapping, dict) and mapping.get(key) not in (None, "", []):
            return path
    return None
