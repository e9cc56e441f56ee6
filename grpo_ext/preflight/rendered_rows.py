"""Find faults in the first prompts, such as identifiers or ambiguous questions."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from grpo_ext.common.columns import ANSWERS, CONTEXTS
from grpo_ext.preflight.first_rows import Row
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards.extraction import find_answer
from grpo_ext.rewards.guard import unguarded
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.reward_columns import named_columns

Prompt = str | list[dict[str, Any]]  # a string, or chat messages
MAX_SHARE = 0.5  # share of rows above which a fault is reported, or is a problem instead of a note
ANSWER_MARKS = ("####", "\\boxed", "nswer is")  # markers of the final answer in worked solutions
# A UUID, a long hexadecimal number with digits and letters, or a word followed by a separator and a
# number, such as train-00012.
UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
HASH = re.compile(rf"{UUID}|(?=.*\d)(?=.*[a-f])[0-9a-f]{{16,}}", re.IGNORECASE)
NUMBERED = re.compile(r"[A-Za-z][\w./:]*[-_./:#]\d{2,}")
ADDRESS_OR_NUMBER = re.compile(r"https?://\S+|[-+]?\d[\d.,]*")


def judge_rows(
    rows: Sequence[Row], rewards: Sequence[Any], findings: Findings, episodes: bool = False
) -> None:
    """Check that prompts ask a question and have one answer each.

    It is a problem if

    - any prompt ends with the assistant's message; nothing else is then checked,
    - most prompts are identifiers, or contain several system messages,
    - most prompts also belong to a row with a different answer.

    It is a note if

    - fewer prompts contain several system messages or belong to rows with different answers,
    - rows with equal prompts differ in other columns that a reward reads,
    - no prompt and no reward uses a column that looks like part of the question.

    Prompts that are only an address or a number, and columns in braces in a system message, are a
    problem or a note (see `report_wordless` and `report_system_messages`).

    Args:
        rows: the rows, with their prompts and all columns.
        rewards: the rewards of the run.
        findings: receives the problems and notes.
        episodes: whether prompts start episodes; equal prompts are then not a fault.
    """
    key = prompt_key(findings)
    if any(ends_with_answer(row["prompt"]) for row in rows):
        findings.problem(assistant_advice(rows), key)
        return
    report_wordless(rows, key, findings)
    columns = named_columns(rewards, list(rows[0]))
    report_system_messages(rows, columns, findings)
    unused = unused_contexts(rows, columns)
    if not episodes:
        report_equal_prompts(rows, rewards, columns, unused, key, findings)
    if unused:
        findings.note(
            f"the column {unused[0]!r} is in no prompt, and no reward reads it. If it is part of "
            f"the question, write {{{unused[0]}}} into user_prompt.",
            key,
        )


def prompt_key(findings: Findings) -> str:
    """Return the recipe key that findings about prompts should name.

    This is `user_prompt` or `prompt_column` if the recipe sets one of them, otherwise `task`.
    """
    for name in ("user_prompt", "prompt_column"):
        if findings.places.get(name):
            return name
    return "task"


def report_wordless(rows: Sequence[Row], key: str, findings: Findings) -> None:
    """Report prompts if most are only identifiers, or if most are only an address or a number.

    Identifiers are always a problem. Addresses and numbers are a problem if prompts are chat
    messages without a system message; with a system message, they are not reported. In plain
    strings they are only noted, because the model may have been trained on such strings.

    Args:
        rows: the rows, with their prompts.
        key: the recipe key that findings refer to.
        findings: receives the problems and notes.
    """
    questions = [last_message(row["prompt"]) for row in rows]
    if share_of(map(is_identifier, questions)) > MAX_SHARE:
        findings.problem(
            f"most prompts are identifiers, such as {next(filter(is_identifier, questions))!r}. "
            'Name the column of the question in user_prompt, for example as "{question}".',
            key,
        )
        return
    bare = [text for text in questions if ADDRESS_OR_NUMBER.fullmatch(text.strip())]
    if len(bare) <= MAX_SHARE * len(rows):
        return
    message = (
        f"most prompts are only an address or a number, such as {bare[0]!r}, so they do not say "
        "what the model should do. Write the task into user_prompt or system_prompt."
    )
    if any(isinstance(row["prompt"], str) for row in rows):
        findings.note(message, key)
    elif not any(system_messages(row["prompt"]) for row in rows):
        findings.problem(message, key)


def report_system_messages(rows: Sequence[Row], columns: Sequence[str], findings: Findings) -> None:
    """Report prompts with several system messages, and system messages with columns in braces.

    Several system messages are a problem if most prompts have them, otherwise a note. Columns in
    braces are looked for in the first row. They are a problem, but only a note if rewards read all
    of these columns, because the braces may then show the form of the answer.

    Args:
        rows: the rows, with their prompts and all columns.
        columns: the columns that the rewards read.
        findings: receives the problems and notes.
    """
    twice = [number for number, row in enumerate(rows, 1) if system_messages(row["prompt"]) > 1]
    if twice:
        message = (
            f"the prompts of {len(twice)} of the first {len(rows)} rows, such as row {twice[0]}, "
            "have more than one system message, from the data or from system_prompt. Remove "
            "system_prompt, or the additional system messages in the data."
        )
        if len(twice) > MAX_SHARE * len(rows):
            findings.problem(message, "system_prompt")
        else:
            findings.note(message, "system_prompt")
    prompt = rows[0]["prompt"]
    if not system_messages(prompt):
        return
    text = next(message_text(message) for message in prompt if message.get("role") == "system")
    fields = [name for name in rows[0] if has_field(text, name)]
    if not fields:
        return
    questions = [name for name in fields if name not in columns]
    field = next(iter(questions), fields[0])
    message = (
        f"the system message contains {{{field}}} literally, because columns in braces are filled "
        f"in only in user_prompt. Write {{{field}}} into user_prompt instead."
    )
    if questions:
        findings.problem(message, "system_prompt")
    else:
        findings.note(message, "system_prompt")


def has_field(text: str, name: str) -> bool:
    r"""Return whether `text` contains the column `name` in braces.

    Braces directly after a letter, digit, `_`, `^`, `}` or backslash do not count, because they may
    belong to a LaTeX formula, as in `\boxed{x}`.
    """
    field = re.escape(f"{{{name}}}")
    return re.search(rf"(?<![\\\w}}^]){field}", text) is not None


def system_messages(prompt: Prompt) -> int:
    """Return the number of system messages in a prompt."""
    if isinstance(prompt, str):
        return 0
    return sum(message.get("role") == "system" for message in prompt)


def report_equal_prompts(
    rows: Sequence[Row],
    rewards: Sequence[Any],
    columns: Sequence[str],
    unused: Sequence[str],
    key: str,
    findings: Findings,
) -> None:
    """Report rows that have equal prompts but different values in the columns that rewards read.

    It is a problem if most rows have the same prompt as a row with a different answer, and a note
    if fewer rows do. Differences only in other columns that rewards read are a note, because these
    columns may be ids or limits.

    Args:
        rows: the rows, with their prompts and all columns.
        rewards: the rewards of the run.
        columns: the columns that the rewards read.
        unused: the columns that look like part of the question but are in no prompt.
        key: the recipe key that findings refer to.
        findings: receives the problem or note.
    """
    differing: Sequence[str] = [name for name in columns if is_answer(name, rewards)]
    ambiguous = ambiguous_prompts(rows, differing)
    is_problem = share_of(ambiguous) > MAX_SHARE
    if not any(ambiguous):
        differing = columns
        ambiguous = ambiguous_prompts(rows, differing)
    if not any(ambiguous):
        return
    example = last_message(rows[ambiguous.index(True)]["prompt"])
    hint = f", perhaps {unused[0]!r}, which is in no prompt" if unused else ""
    message = (
        f"{share_of(ambiguous):.0%} of the first {len(rows)} rows have the same prompt as a row "
        f"with a different {' or '.join(differing)}, so the prompt does not say which "
        f"answer is expected. Add the column that tells these rows apart to the prompt{hint}. "
        f"Example: {example[:200]!r}"
    )
    if is_problem:
        findings.problem(message, key)
    else:
        findings.note(message, key)


def ambiguous_prompts(rows: Sequence[Row], columns: Sequence[str]) -> list[bool]:
    """Return for each row whether a row with the same prompt has different values in `columns`.

    Of worked solutions, only the final answers are compared.
    """
    answers_of_prompt: dict[str, set[str]] = defaultdict(set)
    prompts = []
    for row in rows:
        prompt = repr(row["prompt"])
        answers = [final_answer(row.get(name)) for name in columns]
        prompts.append(prompt)
        answers_of_prompt[prompt].add(repr(answers))
    return [len(answers_of_prompt[prompt]) > 1 for prompt in prompts]


def final_answer(value: object) -> object:
    """Return the final answer of a worked solution; return any other value unchanged.

    A worked solution in which no answer is found is also returned unchanged.
    """
    if isinstance(value, str) and any(mark in value for mark in ANSWER_MARKS):
        return find_answer(value) or value
    return value


def is_answer(column: str, rewards: Sequence[Any]) -> bool:
    """Return whether a column has a usual answer name or is required by a registered reward."""
    if column in ANSWERS:
        return True
    for reward in rewards:
        function = unguarded(reward)
        if isinstance(function, Reward) and column in function.registration.columns:
            return True
    return False


def unused_contexts(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return the columns that look like part of the question but are in no prompt.

    Columns that are empty, or that rewards read (`columns`), are left out.
    """
    unused = []
    for name in rows[0]:
        if name in columns or name.lower() not in CONTEXTS:
            continue
        is_filled = False
        is_used = False
        for row in rows:
            prompt = text_of_prompt(row["prompt"])
            for text in texts_in(row.get(name)):
                is_filled = True
                is_used = is_used or text in prompt
        if is_filled and not is_used:
            unused.append(name)
    return unused


def texts_in(value: object) -> list[str]:
    """Return the non-empty strings in a cell, stripped, including those in lists and mappings."""
    if isinstance(value, str):
        text = value.strip()
        return [text] if text else []
    if isinstance(value, dict):
        value = list(value.values())
    texts = []
    if isinstance(value, list):
        for entry in value:
            texts += texts_in(entry)
    return texts


def ends_with_answer(prompt: Prompt) -> bool:
    """Return whether a prompt is chat messages that end with the assistant's message."""
    return isinstance(prompt, list) and prompt[-1].get("role") == "assistant"


def assistant_advice(rows: Sequence[Row]) -> str:
    """Return the error message for prompts that end with the assistant's message.

    The assistant's message is assumed to be the answer or, if there are several rows and all have
    the same one, the beginning of every answer.
    """
    prompts = [row["prompt"] for row in rows]
    ends = {last_message(prompt) for prompt in prompts if ends_with_answer(prompt)}
    if len(rows) > 1 and len(ends) == 1 and all(map(ends_with_answer, prompts)):
        return (
            f"prompts end with the assistant's message {ends.pop()[:80]!r}. The chat template "
            "closes it, so the model begins another message instead of continuing it. If it is the "
            "beginning of every answer, put it into the chat template, after "
            "add_generation_prompt, or write prompts as strings."
        )
    return (
        "prompts end with the assistant's message, so the model reads the answer. With `task: "
        "prompts`, set `answer_column: solution`, which moves this message into a column that "
        "rewards read."
    )


def text_of_prompt(prompt: Prompt) -> str:
    """Return the text of a prompt; the texts of chat messages are joined with line breaks."""
    return prompt if isinstance(prompt, str) else "\n".join(map(message_text, prompt))


def last_message(prompt: Prompt) -> str:
    """Return the text of a prompt's last message, or the prompt itself if it is a string."""
    return prompt if isinstance(prompt, str) else message_text(prompt[-1])


def message_text(message: dict[str, Any]) -> str:
    """Return the text of a chat message; the texts of several parts are joined with spaces."""
    content = message.get("content")
    if not isinstance(content, list):
        return str(content or "")
    texts = []
    for part in content:
        if isinstance(part, dict):
            texts.append(str(part.get("text") or ""))
    return " ".join(texts)


def is_identifier(text: str) -> bool:
    """Return whether a string is a UUID, a hash, or a row number such as train-00012."""
    word = text.strip()
    return bool(HASH.fullmatch(word) or NUMBERED.fullmatch(word))


def share_of(flags: Iterable[bool]) -> float:
    """Return the share of true values among `flags`, which must not be empty."""
    values = list(flags)
    return sum(values) / len(values)
