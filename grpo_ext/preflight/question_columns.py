"""Find the columns that contain the question, by their names and values."""

from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.proposed_reward import usual_names
from grpo_ext.preflight.rendered_rows import MAX_SHARE, ends_with_answer, is_identifier, share_of
from grpo_ext.rewards.format_rewards import LANGUAGES

# usual names of the column that contains the question
QUESTIONS = (
    "prompt", "messages", "conversations", "conversation", "question", "problem", "instruction",
    "request", "query", "question_stem", "problem_statement", "problem_description", "task", "goal",
    "ctx", "text", "input",
)  # fmt: skip


def usual_question(rows: list[Row]) -> str | None:
    """Return the column whose name comes first in `QUESTIONS`, or `None` if there is none.

    Case is ignored in names, and spaces and hyphens count as underscores. Columns of identifiers,
    and columns without any string or list, are skipped.
    """
    for name in usual_names(QUESTIONS, list(rows[0])):
        is_question = any(isinstance(row.get(name), str | list) for row in rows)
        if is_question and not is_identifier_column(rows, name):
            return name
    return None


def question_of_pairs(rows: list[Row]) -> str:
    """Return the column `chosen` of preference pairs, if all its values end with an answer.

    Raises:
        ValueError: if a value of `chosen` is not chat messages that end with the assistant's
            answer, so that the question cannot be separated from it.
    """
    if all(has_answer(row.get("chosen")) for row in rows):
        return "chosen"
    raise ValueError(
        "the columns chosen and rejected contain the question together with an answer, so no "
        "column can be used as the prompt. Add a column `prompt` with the question of each row."
    )


def language_pair(rows: list[Row]) -> tuple[str, str] | None:
    """Return the template field of the source text and the column of its translation.

    Return `None` unless exactly two columns of strings, or exactly two keys of the column
    `translation`, have language codes as their names.
    """
    columns = [name for name in rows[0] if name in LANGUAGES and is_text_column(rows, name)]
    if len(columns) == 2:
        return columns[0], columns[1]
    translation = rows[0].get("translation")
    if isinstance(translation, dict):
        keys = [key for key in translation if key in LANGUAGES]
        if len(keys) == 2:
            return f"translation[{keys[0]}]", f"translation.{keys[1]}"
    return None


def is_text_column(rows: list[Row], name: str) -> bool:
    """Return whether a column contains text.

    All its cells must be strings. At least one must not be empty, and at most half may be
    identifiers.
    """
    cells = [row.get(name) for row in rows]
    if not all(isinstance(cell, str) for cell in cells) or not any(cells):
        return False
    return not is_identifier_column(rows, name)


def is_identifier_column(rows: list[Row], name: str) -> bool:
    """Return whether most values of a column are identifiers, such as UUIDs."""
    return share_of(is_identifier(str(row.get(name))) for row in rows) > MAX_SHARE


def has_answer(prompt: object) -> bool:
    """Return whether a prompt is chat messages that end with the assistant's answer as a string."""
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[-1], dict):
        return False
    return ends_with_answer(prompt) and isinstance(prompt[-1].get("content"), str)
