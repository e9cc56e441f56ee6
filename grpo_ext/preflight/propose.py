"""Propose a prompt and a reward that fit the rows of a data file.

Whatever the rows leave open is left to the user: the prompt contains `TO DO:`, the reward must
still be written, or the proposal has other questions. `grpo-ext check` reports a problem until the
user has replaced the `TO DO:` and written the reward.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.option_columns import find_options
from grpo_ext.preflight.proposal import Proposal, columns_of
from grpo_ext.preflight.proposed_reward import UNWRITTEN, choose_reward, find_golds
from grpo_ext.preflight.question_columns import (
    has_answer,
    is_text_column,
    language_pair,
    question_of_pairs,
    usual_question,
)
from grpo_ext.preflight.whole_prompt import with_whole_prompt
from grpo_ext.tasks.prompts import TO_DO
from grpo_ext.tasks.sharegpt import chat_messages
from grpo_ext.tasks.templates import is_field_name

COUNTDOWN = (
    "Use the numbers {nums}, each exactly once, with + - * / and parentheses, to make {target}."
)
MOST_TEXTS = 3  # maximum number of columns in a prompt that the user has to finish


def propose(rows: list[Row], prompt: str | None = None, gold: str | None = None) -> Proposal:
    """Propose a prompt and a reward for rows.

    Args:
        rows: the first rows of a data file, at least one.
        prompt: the question, as a column or as a template with columns in braces; if `None`, a
            prompt is chosen.
        gold: the column of the gold answers; `None` chooses one with a usual name.

    Raises:
        ValueError: if no column can be used as the question, the braces of `prompt` do not match, a
            conversation has a role without a counterpart in chat messages, at least half of the
            rows have no answer in `gold`, or the prompt contains `gold`.
    """
    rows = [with_messages(row) for row in rows]
    if gold is not None and find_golds(rows, [], gold) is None:
        raise ValueError(
            f"The answer column {gold!r} does not exist, or at least half of the rows have no "
            f"answer in it.{did_you_mean(gold, rows[0])} Pass another column with --answer. The "
            f"columns are {', '.join(rows[0])}."
        )
    if prompt is None:
        proposal = propose_whole(rows, gold)
    else:
        proposal = propose_reward(rows, prompt, columns_of(prompt), gold)
    if gold is not None and gold in columns_of(proposal.prompt):
        raise ValueError(
            f"The prompt contains the answer column {gold!r}, so the model could copy the answers. "
            "With --prompt, pass the column of the question, or a template without this column."
        )
    return proposal


def propose_whole(rows: list[Row], gold: str | None = None) -> Proposal:
    """Choose the column of the question, and propose a prompt and a reward.

    Args:
        rows: the first rows, converted by `with_messages`.
        gold: the column of the gold answers, if the user has named it.

    Raises:
        ValueError: if no column can be used as the question.
    """
    names = list(rows[0])
    languages = language_pair(rows)
    question = usual_question(rows)
    if languages is not None and gold in (None, languages[1]):
        return propose_translation(*languages)
    if question is None and {"nums", "target"} <= set(names) and gold is None:
        return propose_reward(rows, COUNTDOWN, [])
    if question is None and {"chosen", "rejected"} <= set(names):
        question = question_of_pairs(rows)
    if question is None:
        return propose_unknown(rows, gold)
    proposal = propose_reward(rows, question, [question], gold)
    if any(isinstance(row.get(question), list) for row in rows):  # chat messages
        return proposal
    others = [name for name in names if name != question]
    return with_whole_prompt(proposal, rows, others, gold)


def propose_reward(
    rows: list[Row], prompt: str, used: Sequence[str], gold: str | None = None
) -> Proposal:
    """Propose a reward for a prompt that has been chosen.

    If the prompts are messages that end with the assistant's answer, the recipe moves that answer
    to a separate column: `demonstration` if another column has gold answers, otherwise the column
    that the reward reads.

    Args:
        rows: the first rows.
        prompt: the question, as a column or a template.
        used: the columns that the prompt uses; the proposed reward does not read them.
        gold: the column of the gold answers, if the user has named it.
    """
    others = [name for name in rows[0] if name not in used]
    cuts_answer = all(has_answer(row.get(prompt)) for row in rows)
    answer = None
    if cuts_answer and find_golds(rows, others, gold) is not None:
        answer = "demonstration"  # the reward reads another column
    elif cuts_answer:
        answer = "solution"
        rows = [{**row, answer: row[prompt][-1]["content"]} for row in rows]
        others.append(answer)
    choice = choose_reward(rows, others, find_options(rows, others), gold)
    if answer == "solution":
        answer = next(iter(choice.columns), answer)
    questions = [] if choice.question is None else [choice.question]
    return Proposal(
        prompt, choice.name, choice.columns, choice.reason, choice.options, answer, questions
    )


def propose_translation(source: str, target: str) -> Proposal:
    """Propose a translation prompt, with an unwritten reward, for rows in two languages.

    Args:
        source: the template field of the text to translate, such as `en` or `translation[en]`.
        target: the column of the translation, such as `de` or `translation.de`.
    """
    languages = [re.split(r"[.\[]", name)[-1].strip("]") for name in (source, target)]
    return Proposal(
        f"Translate this text from {languages[0]} to {languages[1]}.\n\n{{{source}}}",
        UNWRITTEN,
        {"reference": target},
        f"the column {target} has translations, which no rule can judge",
    )


def propose_unknown(rows: list[Row], gold: str | None = None) -> Proposal:
    """Propose a prompt that the user has to finish, for rows without a usual question column.

    Args:
        rows: the first rows, converted by `with_messages`.
        gold: the column of the gold answers, if the user has named it.

    Raises:
        ValueError: if no column has only strings (not all empty, and mostly not identifiers) and a
            name that a template can contain.
    """
    names = list(rows[0])
    texts = [name for name in names if is_field_name(name) and is_text_column(rows, name)]
    if not texts:
        raise ValueError(
            "No column can be used as the prompt. A prompt column must contain strings, mostly not "
            "identifiers, and its name must not be a number or contain . : ! [ or braces. The "
            f"columns are {', '.join(names)}. Rename the column of the question to `prompt` or "
            "`question`; if it does not contain strings, convert it."
        )
    golds = find_golds(rows, names, gold)
    shown = [name for name in texts if golds is None or name != golds.column][:MOST_TEXTS] or texts
    proposal = propose_reward(rows, shown[0], shown, gold)
    fields = "\n\n".join(f"{{{name}}}" for name in shown)
    rest = ", ".join(name for name in names if name not in shown)
    also = f" The other columns are {rest}." if rest else ""
    question = (
        "No usable column has the usual name of a question, such as prompt or question. Write into "
        f"user_prompt what the model should do with {', '.join(shown)}.{also}"
    )
    return replace(
        proposal,
        prompt=f"{TO_DO} the model should do with this text.\n\n{fields}",
        questions=[question, *proposal.questions],
    )


def with_messages(row: Row) -> Row:
    """Return a copy of a row whose ShareGPT conversations are converted to chat messages.

    Raises:
        ValueError: if a conversation has a role without a counterpart in chat messages, such as
            `tool_call`.
    """
    return {name: chat_messages(value) for name, value in row.items()}
