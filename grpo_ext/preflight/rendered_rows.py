"""What a look at the first rows refutes, as the model and the rewards get them: prompts that do not
say what is asked.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from grpo_ext.common.columns import ANSWERS, CONTEXTS
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards.extraction import find_answer
from grpo_ext.rewards.guard import Guard
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.reward_checks import parameters_of

Row = dict[str, Any]
MOST = 0.5  # share of rows above which a finding is a problem, or worth a note
MARKS = ("####", "\\boxed", "nswer is")  # before the final answer of a worked solution
LONG_ANSWER = 8  # characters of an answer that is not in a prompt by chance
# A UUID, a long hexadecimal number with digits and letters, or a word with a number behind a
# separator, such as train-00012.
UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
HASH = re.compile(rf"{UUID}|(?=.*\d)(?=.*[a-f])[0-9a-f]{{16,}}", re.IGNORECASE)
NUMBERED = re.compile(r"[A-Za-z][\w./:]*[-_./:#]\d{2,}")


def judge_rows(
    rows: Sequence[Row], rewards: Sequence[Any], findings: Findings, episodes: bool = False
) -> None:
    """Add findings about rows that have their prompts and all columns; with `episodes` equal
    prompts begin different games.

    Problems: prompts that end with the assistant's message; equal prompts of rows with different
    answers; identifiers in place of prompts. Notes: equal prompts of rows that differ in other
    columns which a reward reads, answers within the prompt, and columns of the question that
    neither prompt nor reward reads.
    """
    key = next(
        (name for name in ("user_prompt", "prompt_column") if findings.places.get(name)), "task"
    )
    if any(ends_with_answer(row["prompt"]) for row in rows):
        findings.problem(assistant_advice(rows), key)
        return
    texts = [text_of_prompt(row["prompt"]) for row in rows]
    asked = [last_message(row["prompt"]) for row in rows]
    if share_of(is_identifier(text) for text in asked) > MOST:
        findings.problem(
            f"the prompts are identifiers, such as {asked[0][:80]!r}: name the column of the "
            "question in user_prompt, as in "
            '"{question}".',
            key,
        )
    read = columns_read(rewards, list(rows[0]))
    unused = unused_contexts(rows, texts, read)
    answers = [name for name in read if name in rows[0]]
    if not episodes:
        report_equal_prompts(rows, rewards, answers, unused, key, findings)
    if unused:
        findings.note(
            f"the column {unused[0]!r} is in no prompt, and no reward reads it: write "
            f"{{{unused[0]}}} in user_prompt, if it is part of the question.",
            key,
        )
    for name in answers:
        told = (answer_is_told(row.get(name), text) for row, text in zip(rows, texts, strict=True))
        if name in ANSWERS and share_of(told) > MOST:
            findings.note(
                f"the prompt contains the column {name!r}, which a reward reads as the answer: "
                "right for a choice or a quote, otherwise the model can copy it.",
                key,
            )


def report_equal_prompts(
    rows: Sequence[Row],
    rewards: Sequence[Any],
    read: Sequence[str],
    unused: Sequence[str],
    key: str,
    findings: Findings,
) -> None:
    """Report rows whose prompt another row has with other values of `read`, the columns that
    rewards read.

    Most rows with another answer are a problem. Columns that only a function of the user reads may
    be an id or a limit: a note.
    """
    answers = [name for name in read if is_answer(name, rewards)]
    by_answer = share_their_prompt(rows, answers)
    differing = answers
    ambiguous = by_answer
    if not any(by_answer):
        differing = list(read)
        ambiguous = share_their_prompt(rows, read)
    if not any(ambiguous):
        return
    first = rows[ambiguous.index(True)]["prompt"]
    hint = f" The rows also differ in {unused[0]!r}, which no prompt has." if unused else ""
    message = (
        f"{share_of(ambiguous):.0%} of the first {len(rows)} rows share their prompt with a row "
        f"whose {' or '.join(differing)} is another, so that the prompt does not say which is "
        f"asked for.{hint} Such a prompt: {last_message(first)[:200]!r}"
    )
    if share_of(by_answer) > MOST:
        findings.problem(message, key)
    else:
        findings.note(message, key)


def share_their_prompt(rows: Sequence[Row], columns: Sequence[str]) -> list[bool]:
    """Return for each row whether another row has its prompt and other values of `columns`."""
    by_prompt: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        by_prompt[repr(row["prompt"])].add(repr([final_answer(row.get(name)) for name in columns]))
    return [len(by_prompt[repr(row["prompt"])]) > 1 for row in rows]


def final_answer(value: Any) -> Any:
    """Return the final answer of a worked solution, of which a data set may have several for one
    question.

    Any other value is returned unchanged.
    """
    if not isinstance(value, str) or not any(mark in value for mark in MARKS):
        return value
    return find_answer(value) or value


def is_answer(column: str, rewards: Sequence[Any]) -> bool:
    """Return whether a column decides what is right: by its name, or because a registered reward
    needs it.
    """
    registered = (registered_reward(reward) for reward in rewards)
    return column in ANSWERS or any(
        column in reward.registration.columns for reward in registered if reward is not None
    )


def registered_reward(reward: Any) -> Reward | None:
    """Return the registered reward behind a guard; `None` for any other reward."""
    function = reward.reward if isinstance(reward, Guard) else reward
    return function if isinstance(function, Reward) else None


def columns_read(rewards: Sequence[Any], columns: Sequence[str]) -> list[str]:
    """Return the columns, of those of the data, that the rewards name as parameters."""
    named: set[str] = set()
    for reward in rewards:
        function = reward.reward if isinstance(reward, Guard) else reward
        registered = registered_reward(reward)
        if registered is not None:
            named |= {*registered.registration.columns, *registered.registration.optional}
        elif callable(function):
            named |= {parameter.name for parameter in parameters_of(function) or ()}
    return [name for name in columns if name in named and name != "prompt"]


def unused_contexts(rows: Sequence[Row], texts: Sequence[str], read: Sequence[str]) -> list[str]:
    """Return the columns with a usual name of a part of the question that are not empty, not read,
    and in no prompt.
    """
    unused = []
    for name in CONTEXTS:
        if name in read or name not in rows[0]:
            continue
        pairs = [(strings_in(row.get(name)), text) for row, text in zip(rows, texts, strict=True)]
        filled = [(strings, text) for strings, text in pairs if strings]
        if filled and not any(string in text for strings, text in filled for string in strings):
            unused.append(name)
    return unused


def strings_in(value: Any) -> list[str]:
    """Return the texts in a value of a column, without empty ones."""
    if isinstance(value, str):
        return [value.strip()] if value.strip() else []
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [text for entry in value for text in strings_in(entry)] if isinstance(value, list) else []
    )


def ends_with_answer(prompt: Any) -> bool:
    """Return whether a prompt is chat messages of which the last is the assistant's."""
    return isinstance(prompt, list) and prompt[-1].get("role") == "assistant"


def assistant_advice(rows: Sequence[Row]) -> str:
    """Say what is wrong with prompts that end with the assistant's message: the answer, or a
    beginning for every answer.
    """
    ends = {last_message(row["prompt"]) for row in rows if ends_with_answer(row["prompt"])}
    if len(rows) > 1 and len(ends) == 1:
        return (
            f"the prompt ends with the assistant's message {ends.pop()[:80]!r}, which the chat "
            "template closes: the model does not continue it, but begins another message. Put a "
            "beginning of every answer into the chat template, behind add_generation_prompt, or "
            "write prompts as texts."
        )
    return (
        "the prompt ends with the assistant's message, so the model reads the answer: write "
        "answer_column: solution, which moves this message into a column that rewards read."
    )


def text_of_prompt(prompt: Any) -> str:
    """Return all texts of a prompt."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(message_text(message) for message in prompt)


def last_message(prompt: Any) -> str:
    """Return the text of the last message, or a prompt that is a text."""
    return prompt if isinstance(prompt, str) else message_text(prompt[-1])


def message_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")


def is_identifier(text: str) -> bool:
    """Return whether a text is a UUID, a hash, or the number of a row, such as train-00012."""
    word = text.strip()
    return bool(HASH.fullmatch(word) or NUMBERED.fullmatch(word))


def answer_is_told(answer: Any, prompt: str) -> bool:
    """Return whether a prompt contains an answer that is too long to be there by chance."""
    text = str(answer).strip()
    return isinstance(answer, str) and len(text) >= LONG_ANSWER and text in prompt


def share_of(flags: Any) -> float:
    """Return the share of true values."""
    truths = list(flags)
    return sum(truths) / len(truths)
