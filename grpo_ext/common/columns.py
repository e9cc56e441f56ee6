"""Names of columns that several rooms read."""

TASK = "task"  # the name of the row's task, in a data set of several tasks

# Columns with the right answer; the first that a row has is taken.
ANSWERS = (
    "solution", "answer", "answers", "last_line", "target", "ground_truth", "label", "output",
    "response", "completion", "expected", "gold", "final_answer", "reference",
)  # fmt: skip
# Columns with a part of the question, beside an instruction or a question.
CONTEXTS = (
    "input", "context", "passage", "document", "article", "background", "premise", "hypothesis",
    "table", "choices", "options",
)  # fmt: skip
# Rows of verl keep the answer in a mapping.
NESTED_ANSWERS = ("reward_model.ground_truth", "extra_info.answer")


def answer_column(row: dict[str, object]) -> str | None:
    """Return the column with the right answer (`column.key` in a mapping); `None` without any."""
    for name in ANSWERS:
        if row.get(name) not in (None, ""):
            return name
    for path in NESTED_ANSWERS:
        column, _, key = path.partition(".")
        mapping = row.get(column)
        if isinstance(mapping, dict) and mapping.get(key) not in (None, ""):
            return path
    return None
