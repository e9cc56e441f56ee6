"""Check that the first rows have gold answers, and that the rewards can use them."""

import re
import time
from collections.abc import Sequence
from typing import Any

from grpo_ext.common.columns import ANSWERS, has_task
from grpo_ext.common.quiet import quiet
from grpo_ext.evaluation.completions import Completion
from grpo_ext.evaluation.score import score_completions
from grpo_ext.preflight.answer_leaks import report_leak
from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.rendered_rows import (
    MAX_SHARE,
    final_answer,
    prompt_key,
    share_of,
    text_of_prompt,
)
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards.answer_kinds import letter_of_gold
from grpo_ext.rewards.answers import last_answer
from grpo_ext.rewards.guard import guard_rewards, unguarded
from grpo_ext.rewards.reward import Reward, Score
from grpo_ext.rewards.reward_columns import named_columns

COLUMN = "solution"  # the column of gold answers that the rewards below read
ANSWER_REWARDS = ("accuracy", "choice", "exact", "number")
KEY = "reward_funcs"
SCORED_ROWS = 64  # maximum number of rows whose gold answers are scored
PATIENCE = 1.0  # time limit of a reward for a gold answer, in seconds
BUDGET = 2.0  # seconds after the first score, after which no further gold answer is scored
LONG_TEXT = 20  # number of words above which hardly any completion repeats a text exactly
LONG_WORDS = 6  # characters per word, for languages that write no spaces
ENOUGH_ROWS = 16  # equal answers in fewer rows are no sign of a fault


def judge_golds(rows: Sequence[Row], rewards: Sequence[Any], findings: Findings) -> None:
    """Check the gold answers that the rewards read.

    It is a problem if most answers are empty, if a reward leaves most of them without a score or
    scores most of them 0, if most prompts contain their own final answer after a marker such as
    `####`, or, for the reward `choice`, if most prompts do not list the right option.

    It is a note if some answers are empty, left without a score or scored 0, if all rows have the
    same answer, if most answers are too long for `exact`, or if prompts contain the answer in
    another way. For rewards other than `ANSWER_REWARDS`, only the prompts are checked.

    Args:
        rows: the rows, with their prompts and all columns.
        rewards: the rewards of the run.
        findings: receives the problems and notes.
    """
    for name in named_columns(rewards, list(rows[0])):
        if name in ANSWERS:
            report_leak(rows, name, prompt_key(findings), findings)
    for guarded in rewards:
        reward = unguarded(guarded)
        if not isinstance(reward, Reward) or reward.registration.name not in ANSWER_REWARDS:
            continue
        own = [row for row in rows if has_task(row, reward.tasks)]
        if not own or COLUMN not in own[0]:
            continue
        filled = report_empty(own, reward, findings)
        if not filled or findings.has_problem(KEY):
            continue
        report_equal(filled, reward, findings)
        report_unread(filled, reward, findings)
        if reward.registration.name == "choice":
            report_missing_options(filled, reward, findings)
        if reward.registration.name == "exact":
            report_long(filled, findings)


def report_empty(rows: Sequence[Row], reward: Reward, findings: Findings) -> list[tuple[int, Row]]:
    """Report rows without a gold answer, and return the other rows with their numbers (1-based).

    Rows without an answer are a problem if they are more than half of the rows, otherwise a note.
    """
    filled = []
    empty = []
    for number, row in enumerate(rows, 1):
        if is_blank(row[COLUMN]):
            empty.append(number)
        else:
            filled.append((number, row))
    if empty:
        message = (
            f"the column {COLUMN!r} is empty in {len(empty)} of the first {len(rows)} rows, such "
            f"as row {empty[0]}, so reward {reward.name!r} cannot judge them. Drop these rows, or "
            "name the column of the answers in rename_columns."
        )
        if len(empty) > MAX_SHARE * len(rows):
            findings.problem(message, KEY)
        else:
            findings.note(message, KEY)
    return filled


def is_blank(gold: object) -> bool:
    """Return whether a gold answer is `None`, empty, whitespace, or a list of only such values."""
    if isinstance(gold, list):
        return all(map(is_blank, gold))
    return gold is None or not str(gold).strip()


def report_equal(rows: Sequence[tuple[int, Row]], reward: Reward, findings: Findings) -> None:
    """Add a note if all rows have the same answer and there are at least `ENOUGH_ROWS` rows."""
    answers = {str(final_answer(row[COLUMN])).strip() for _, row in rows}
    if len(answers) == 1 and len(rows) >= ENOUGH_ROWS:
        findings.note(
            f"the first {len(rows)} rows with an answer all have the answer {answers.pop()[:80]!r}"
            f", so a constant completion always earns reward {reward.name!r}. If the data is "
            "sorted by answer, shuffle it before the run.",
            KEY,
        )


def report_unread(rows: Sequence[tuple[int, Row]], reward: Reward, findings: Findings) -> None:
    """Report gold answers that a reward cannot use, or to which it gives 0.

    Each of these faults is a problem if it concerns most of the scored answers, otherwise a note.

    Args:
        rows: the rows with a gold answer, with their numbers; the first `SCORED_ROWS` are scored.
        reward: one of `ANSWER_REWARDS`.
        findings: receives the problems and notes.
    """
    scores = scores_of_golds([row for _, row in rows[:SCORED_ROWS]], reward)
    unread = [at for at, score in enumerate(scores) if score is None]
    refused = [at for at, score in enumerate(scores) if score == 0]
    name = reward.name
    if unread:
        number, row = rows[unread[0]]
        message = (
            f"reward {name!r} cannot use the answers of {len(unread)} of the first "
            f"{len(scores)} rows with an answer, so these rows get no score. The first is row "
            f"{number}, with {COLUMN!r} {str(row[COLUMN])[:80]!r}.{advice(reward)}"
        )
        if len(unread) > MAX_SHARE * len(scores):
            findings.problem(message, KEY)
        else:
            findings.note(message, KEY)
    if refused:
        number, row = rows[refused[0]]
        message = (
            f"reward {name!r} gives 0 to a completion with the right answer in {len(refused)} of "
            f"the first {len(scores)} rows with an answer. The first is row {number}, with "
            f"{COLUMN!r} {str(row[COLUMN])[:80]!r}.{advice(reward)}"
        )
        if len(refused) > MAX_SHARE * len(scores):
            findings.problem(message, KEY)
        else:
            findings.note(message, KEY)


def advice(reward: Reward) -> str:
    """Return advice, after a space, for a reward that does not suit the gold answers."""
    if reward.registration.name == "choice" and reward.options["first_index"] is None:
        return (
            " This reward needs letters. If the answers are the numbers of options, use {name: "
            "choice, first_index: 0}, or first_index: 1 if option A has the number 1."
        )
    if reward.registration.name == "exact":
        return (
            " Use the reward `accuracy` for solutions that end with their answer, or name another "
            "answer column in rename_columns."
        )
    return " Use another reward (`exact` for text, `choice` for letters), or drop these rows."


def scores_of_golds(rows: Sequence[Row], reward: Reward) -> list[Score]:
    """Return for each row the score of a completion that gives the gold answer.

    A score is `None` if the gold answer is structured (see `is_structured`), or if the reward does
    not score the completion. Rows that are not reached within `BUDGET` seconds after the first
    score are left out.
    """
    [guard] = guard_rewards([reward], timeout=PATIENCE, max_failure_rate=1.0)
    scores: list[Score] = []
    until = float("inf")
    with quiet("grpo_ext.rewards.guard"):
        for row in rows:
            if time.monotonic() > until:
                break
            if is_structured(row[COLUMN]):
                scores.append(None)
                continue
            completion = Completion(f"<answer>\n{answer_in(row[COLUMN], reward)}\n</answer>", [])
            [sample] = score_completions([row], [[completion]], {guard.name: guard})
            scores.append(sample.rewards[guard.name])
            if len(scores) == 1:  # time spent on the first does not count: it may import a package
                until = time.monotonic() + BUDGET
    return scores


def is_structured(gold: object) -> bool:
    """Return whether a gold answer is a mapping, or a list that contains a mapping."""
    entries = gold if isinstance(gold, list) else [gold]
    return any(isinstance(entry, dict) for entry in entries)


def answer_in(gold: object, reward: Reward) -> str:
    """Return the answer that a correct completion would contain.

    Args:
        gold: a gold answer, or a worked solution that contains the answer. If `gold` is a list, the
            first entry that is not blank is used.
        reward: the reward. For `choice`, the answer is the letter of the option, or `gold` as a
            string if `gold` does not name an option.
    """
    if isinstance(gold, list):
        gold = next((entry for entry in gold if not is_blank(entry)), "")
    if reward.registration.name == "choice":
        return letter_of_gold(gold, reward.options["first_index"]) or str(gold)
    text = str(gold)
    return last_answer(text) or str(final_answer(text))


def report_missing_options(
    rows: Sequence[tuple[int, Row]], reward: Reward, findings: Findings
) -> None:
    """Report a problem if most prompts do not contain the letter of the right option.

    Args:
        rows: the rows with a gold answer, with their numbers.
        reward: the reward `choice`.
        findings: receives the problem.
    """
    missing = []
    for number, row in rows:
        letter = letter_of_gold(row[COLUMN], reward.options["first_index"])
        prompt = text_of_prompt(row["prompt"])
        if letter is not None and not re.search(rf"(?i)(?<!\w){letter}(?![\w'])", prompt):
            missing.append((number, letter))
    if len(missing) > MAX_SHARE * len(rows):
        number, letter = missing[0]
        findings.problem(
            f"the prompts of {len(missing)} of the first {len(rows)} rows do not list the right "
            f"option, such as option {letter} in row {number}. List the options in user_prompt, "
            'for example with "{question}\\n{choices:letters}".',
            prompt_key(findings),
        )


def report_long(rows: Sequence[tuple[int, Row]], findings: Findings) -> None:
    """Add a note if most answers are long texts, which hardly any completion repeats exactly."""
    if share_of(is_long(row[COLUMN]) for _, row in rows) > MAX_SHARE:
        findings.note(
            f"most answers in {COLUMN!r} are longer than about {LONG_TEXT} words. The reward "
            "'exact' gives 1 only for an identical text, so hardly any completion earns it. Write "
            "a reward that compares texts, or let a model grade with the reward `judge`.",
            KEY,
        )


def is_long(gold: object) -> bool:
    """Return whether a gold answer is a long string, or a list of only long strings."""
    texts = gold if isinstance(gold, list) else [gold]
    shortest = min(map(str, texts), key=len)
    return len(shortest.split()) > LONG_TEXT or len(shortest) > LONG_TEXT * LONG_WORDS
