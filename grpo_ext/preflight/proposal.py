"""Propose a prompt and a reward that fit the rows of a data file.

What the rows leave open becomes a question: a text `TO DO:` in the prompt, or a reward that is
still to be written. `grpo-ext check` refuses a recipe with either.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_ext.common.columns import CONTEXTS
from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.option_columns import Options, find_options
from grpo_ext.preflight.proposed_reward import (
    TESTS,
    UNWRITTEN,
    Golds,
    choose_reward,
    find_golds,
    first_of,
    most,
    usual_names,
)
from grpo_ext.preflight.rendered_rows import (
    MAX_SHARE,
    ends_with_answer,
    is_identifier,
    share_of,
)
from grpo_ext.preflight.try_code import names_functions
from grpo_ext.rewards.format_rewards import LANGUAGES
from grpo_ext.rewards.judge_client import model_at
from grpo_ext.tasks.base import template_columns
from grpo_ext.tasks.prompts import TO_DO
from grpo_ext.tasks.sharegpt import chat_messages

# usual names of the column that contains the question
QUESTIONS = (
    "prompt", "messages", "conversations", "conversation", "question", "problem", "instruction",
    "query", "question_stem", "problem_statement", "problem_description", "task", "goal", "ctx",
    "text", "input",
)  # fmt: skip
# Of these, names of texts that do not say what to do with them.
VAGUE = ("text", "input")
LABELS = ("label", "labels", "class", "target")  # columns of a classification
COUNTDOWN = (
    "Use the numbers {nums}, each exactly once, with + - * / and parentheses, to make {target}."
)
MOST_CLASSES = 12  # distinct answers that are listed in a prompt
ROWS_OF_CLASS = 3  # mean number of rows with the same answer, from which answers are classes
MOST_TEXTS = 3  # columns of texts in a prompt that a person has to write


@dataclass
class Proposal:
    """A prompt and a reward that fit the rows of a data file."""

    prompt: str  # the column of the question, or a template of several columns
    reward: str
    columns: dict[str, str]  # a column that the reward reads -> a column of the data
    reason: str  # why the reward fits, as a clause
    options: dict[str, Any] = field(default_factory=dict)  # options of the reward
    # the column for the assistant's last message, which is cut from the prompt
    answer_column: str | None = None
    # what a person has to decide before the recipe can be used
    questions: list[str] = field(default_factory=list)


def propose(rows: list[Row], prompt: str | None = None) -> Proposal:
    """Propose a prompt and a reward for rows.

    Args:
        rows: the first rows of a data file.
        prompt: the question, as a column or a template of columns in braces; `None`: choose it.

    Raises:
        ValueError: if there is no row, or no column can be the question.
    """
    if not rows:
        raise ValueError("the data has no rows.")
    rows = [with_messages(row) for row in rows]
    if prompt is None:
        return propose_whole(rows)
    used = template_columns(prompt) if "{" in prompt else [prompt]
    return propose_reward(rows, prompt, used)


def propose_whole(rows: list[Row]) -> Proposal:
    """Propose a prompt and a reward for rows whose messages are chat messages."""
    names = list(rows[0])
    languages = language_pair(rows)
    question = usual_question(rows)
    if languages is not None:
        return propose_translation(*languages)
    if question is None and {"nums", "target"} <= set(names):
        return propose_reward(rows, COUNTDOWN, [])
    if question is None and {"chosen", "rejected"} <= set(names):
        question = question_of_pairs(rows)
    if question is None:
        return propose_unknown(rows)
    proposal = propose_reward(rows, question, [question])
    if any(isinstance(row.get(question), list) for row in rows):  # chat messages
        return proposal
    others = [name for name in names if name != question]
    return with_whole_prompt(proposal, rows, others)


def with_whole_prompt(proposal: Proposal, rows: list[Row], others: list[str]) -> Proposal:
    """Return a proposal whose prompt has all that the question needs beside its own column.

    These are contexts, such as Alpaca's `input`, options, the names of classes, or a test that
    names the function to write. What they leave open becomes a question.

    Args:
        proposal: a proposal whose prompt is a column of texts.
        rows: the first rows.
        others: the columns beside the question.
    """
    question = proposal.prompt
    golds = find_golds(rows, others)
    parts = [f"{{{question}}}"]
    for name in usual_names(CONTEXTS, others):
        is_gold = golds is not None and name == golds.column
        if not is_gold and is_text_column(rows, name):
            parts.append(f"{{{name}}}")
    questions = list(proposal.questions)
    is_vague = question in VAGUE
    options = find_options(rows, others)
    tests = first_of(TESTS, others)
    if proposal.reward == "choice" and options is not None:
        parts[-1] += f"\n{options.template}"
    elif proposal.reward == "choice" and not lists_options(rows, question):
        questions.append("Where are the options of the question? The prompt has to list them.")
    elif options is not None and answers_are_options(golds, options):
        parts[-1] += f"\n{options.unlettered}"
    elif proposal.reward == "code" and tests is not None:
        is_vague = False
        parts += example_of_tests(rows, question, tests)
    elif golds is not None and proposal.reward in ("exact", "number"):
        classes = classes_of(golds, rows)
        if classes and is_numbered(golds, classes):
            parts.insert(0, f"{TO_DO} the numbers mean: {', '.join(classes)}")
            questions.append(
                f"What do the numbers of {golds.column} mean ({', '.join(classes)})? Write their "
                "names into user_prompt."
            )
            proposal = replace(proposal, reward="exact")
            is_vague = False
        elif classes:
            parts.append(f"Answer with one of: {', '.join(classes)}.")
            is_vague = False
    if is_vague:
        parts.insert(0, f"{TO_DO} the model should do with this text.")
        questions.append(f"What should the model do with {question}? Write it into user_prompt.")
    return replace(proposal, prompt="\n\n".join(parts), questions=questions)


def propose_reward(rows: list[Row], prompt: str, used: Sequence[str]) -> Proposal:
    """Propose a reward for a prompt that is settled.

    Args:
        rows: the first rows.
        prompt: the question, as a column or a template.
        used: the columns that the prompt uses, which a reward does not read.
    """
    others = [name for name in rows[0] if name not in used]
    cuts_answer = all(has_answer(row.get(prompt)) for row in rows)
    answer = None
    if cuts_answer and find_golds(rows, others) is not None:
        answer = "demonstration"  # the reward reads another column
    elif cuts_answer:
        answer = "solution"
        rows = [{**row, answer: row[prompt][-1]["content"]} for row in rows]
        others.append(answer)
    choice = choose_reward(rows, others, find_options(rows, others))
    if answer == "solution":
        answer = next(iter(choice.columns), answer)
    questions = [] if choice.question is None else [choice.question]
    return Proposal(
        prompt, choice.name, choice.columns, choice.reason, choice.options, answer, questions
    )


def propose_translation(source: str, target: str) -> Proposal:
    """Propose a prompt and an unwritten reward for the texts of two languages.

    Args:
        source: the field of the text to translate, such as `en`, or `translation[en]`.
        target: the column of the translation, such as `de`, or `translation.de`.
    """
    languages = [re.split(r"[.\[]", name)[-1].strip("]") for name in (source, target)]
    return Proposal(
        f"Translate this text from {languages[0]} to {languages[1]}.\n\n{{{source}}}",
        UNWRITTEN,
        {"reference": target},
        f"{target} has translations, which no rule can judge",
    )


def propose_unknown(rows: list[Row]) -> Proposal:
    """Propose a prompt that a person has to complete, for columns without a usual name.

    Raises:
        ValueError: if no column consists of texts.
    """
    names = list(rows[0])
    texts = [name for name in names if is_text_column(rows, name)]
    if not texts:
        raise ValueError(
            "No column can be the prompt, because none consists of texts that could be "
            f"questions. The columns are {', '.join(names)}. Name the column of the question "
            "`prompt` or `question`."
        )
    golds = find_golds(rows, names)
    shown = [name for name in texts if golds is None or name != golds.column][:MOST_TEXTS] or texts
    proposal = propose_reward(rows, shown[0], shown)
    fields = "\n\n".join(f"{{{name}}}" for name in shown)
    rest = ", ".join(name for name in names if name not in shown)
    also = f" The other columns are {rest}." if rest else ""
    question = (
        "No column has the usual name of a question, such as prompt or question. Write into "
        f"user_prompt what the model should do with {', '.join(shown)}.{also}"
    )
    return replace(
        proposal,
        prompt=f"{TO_DO} the model should do with this text.\n\n{fields}",
        questions=[question, *proposal.questions],
    )


def with_messages(row: Row) -> Row:
    """Return a row with its ShareGPT conversations converted to chat messages."""
    return {name: chat_messages(value) for name, value in row.items()}


def usual_question(rows: list[Row]) -> str | None:
    """Return the first column with one of the names in `QUESTIONS`; `None` if there is none.

    Columns of identifiers, and of other values than texts and messages, are skipped.
    """
    for name in usual_names(QUESTIONS, list(rows[0])):
        is_question = any(isinstance(row.get(name), str | list) for row in rows)
        if is_question and not is_identifier_column(rows, name):
            return name
    return None


def question_of_pairs(rows: list[Row]) -> str:
    """Return the column whose messages begin with the question of a preference.

    Raises:
        ValueError: if the pairs are texts, in which question and answer are not told apart.
    """
    if all(has_answer(row.get("chosen")) for row in rows):
        return "chosen"
    raise ValueError(
        "the columns chosen and rejected contain the question together with an answer, so no "
        "column can be the prompt. Write the question of each row into a column `prompt`."
    )


def language_pair(rows: list[Row]) -> tuple[str, str] | None:
    """Return the field of the source text and the column of its translation.

    They are two columns named by codes of languages, or two keys of a column `translation`. `None`
    if there are neither.
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
    """Return whether a column contains only texts, not all empty and not mostly identifiers."""
    cells = [row.get(name) for row in rows]
    if not all(isinstance(cell, str) for cell in cells) or not any(cells):
        return False
    return not is_identifier_column(rows, name)


def is_identifier_column(rows: list[Row], name: str) -> bool:
    """Return whether most values of a column are identifiers, such as UUIDs."""
    return share_of(is_identifier(str(row.get(name))) for row in rows) > MAX_SHARE


def has_answer(prompt: object) -> bool:
    """Return whether a prompt is a list of chat messages that ends with the assistant's answer."""
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[-1], dict):
        return False
    return ends_with_answer(prompt) and isinstance(prompt[-1].get("content"), str)


def lists_options(rows: list[Row], question: str) -> bool:
    """Return whether most questions contain the letters of options."""
    return most(re.search(r"\bA[).:\]]", str(row[question])) for row in rows)


def answers_are_options(golds: Golds | None, options: Options) -> bool:
    """Return whether most gold answers are the text of an option."""
    if golds is None or len(golds.texts) != len(options.texts):
        return False
    pairs = zip(golds.texts, options.texts, strict=True)
    return most(gold in texts for gold, texts in pairs)


def classes_of(golds: Golds, rows: list[Row]) -> list[str]:
    """Return the distinct answers, sorted, if they are the classes of a classification; else `[]`.

    Numbers are classes only in a column with one of the names in `LABELS`.
    """
    classes = sorted(set(golds.texts))
    is_label = golds.column.lower() in LABELS
    are_numbers = all(text.lstrip("-").isdecimal() for text in classes)
    if golds.are_lists or (are_numbers and not is_label):
        return []
    if not 2 <= len(classes) <= MOST_CLASSES or len(rows) < ROWS_OF_CLASS * len(classes):
        return []
    return classes


def is_numbered(golds: Golds, classes: list[str]) -> bool:
    """Return whether the classes are numbers, which do not say what they mean."""
    return golds.column.lower() in LABELS and all(text.isdecimal() for text in classes)


def example_of_tests(rows: list[Row], question: str, tests: str) -> list[str]:
    """Return a part of the prompt with the first test, if tests call functions it does not name."""
    if not all(isinstance(row[tests], list) and isinstance(row[tests][0], str) for row in rows):
        return []
    if most(names_functions(str(row[question]), row[tests]) for row in rows):
        return []
    return [f"The program must pass tests such as this one:\n{{{tests}[0]}}"]


def with_reward(proposal: Proposal, reward: str) -> Proposal:
    """Return a proposal with a reward that a person chose.

    The column that the proposed reward reads is then called `solution`.
    """
    columns = {}
    if proposal.columns:
        columns["solution"] = next(iter(proposal.columns.values()))
    answer = proposal.answer_column
    if answer in proposal.columns:
        answer = "solution"
    return replace(
        proposal,
        reward=reward,
        columns=columns,
        answer_column=answer,
        reason="it was chosen",
        options={},
    )


def with_judge(proposal: Proposal, url: str, folder: str) -> Proposal:
    """Return a proposal with a server's model as the judge, instead of an unwritten reward.

    Args:
        proposal: a proposal with an unwritten reward.
        url: the URL of an OpenAI-compatible server.
        folder: the folder that will contain `rubric.md`.

    Raises:
        ConnectionError: if the server does not respond.
        ValueError: if the URL is invalid, or the server does not report the name of its model.
    """
    model = model_at(url)
    return replace(
        with_reward(proposal, "judge"),
        reason=f"{proposal.reason}, but {model} can",
        options={"url": url, "model": model, "rubric": f"{folder}/rubric.md"},
    )
