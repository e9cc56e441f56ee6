"""The best constant answer: what one completion earns if given to every prompt.

A reward that a constant satisfies can rise although no answer depends on its prompt. Beside this
figure the model's own says whether that is so. The candidates are completions of the evaluation
itself: the most frequent ones and those that scored best. They are tried on some of the rows, and
the best of them is scored on all.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_ext.common.estimates import clearly_above, with_error
from grpo_ext.evaluation.completions import Completion, Row
from grpo_ext.evaluation.score import (
    Rewards,
    Sample,
    over_rows,
    row_means,
    score_completions,
)
from grpo_ext.rewards.guard import AsyncGuard, Guard
from grpo_ext.rewards.reward import Reward

CANDIDATES = 8  # completions that are tried
TRIAL_ROWS = 32  # rows on which each candidate is tried
SUFFIX = "_constant"  # of the figures' names


def rewards_for_constants(rewards: Mapping[str, Any]) -> Rewards:
    """Return those rewards, by name, that a constant answer can be scored with at little cost.

    They are functions behind guards, with the same limits, but their failures are not counted.
    Reward models, async functions and registered rewards that ask a server or load a model are left
    out.
    """
    cheap: Rewards = {}
    for name, guard in rewards.items():
        if isinstance(guard, Guard) and not isinstance(guard, AsyncGuard) and not is_costly(guard):
            cheap[name] = guard.try_out
    return cheap


def is_costly(guard: Guard) -> bool:
    """Whether a registered reward sends each completion to a server, or through a model."""
    if not isinstance(guard.reward, Reward):
        return False
    registration = guard.reward.registration
    return registration.asks_server or registration.loads_model


def candidates(samples: Sequence[Sample], outcome: str) -> list[Sample]:
    """Return at most `CANDIDATES` distinct samples: half the most frequent, then the best ones."""
    counts = Counter(sample.text for sample in samples)
    texts = [text for text, _ in counts.most_common(CANDIDATES // 2)]
    scored = [sample for sample in samples if sample.rewards.get(outcome) is not None]
    scored.sort(key=lambda sample: sample.rewards[outcome] or 0.0, reverse=True)
    texts += [sample.text for sample in scored]
    first = {sample.text: sample for sample in reversed(samples)}  # of each text
    distinct_texts = list(dict.fromkeys(texts))
    return [first[text] for text in distinct_texts[:CANDIDATES]]


def answer_all(
    rows: list[Row], answer: Sample, rewards: Rewards, extras: Row | None = None
) -> list[Sample]:
    """Return the samples of `rows` if each of them gets the same answer.

    Args:
        rows: with `prompt` and the columns of the rewards.
        answer: its text and token ids are given to every row.
        rewards: as `rewards_for_constants` returns them.
        extras: further arguments of every reward.
    """
    completion = Completion(answer.text, answer.ids or [], answer.finish_reason)
    completions = [[completion]] * len(rows)
    return score_completions(rows, completions, rewards, extras)


def best_constant(
    rows: list[Row],
    samples: Sequence[Sample],
    rewards: Rewards,
    outcome: str,
    weights: Mapping[str, float] | None = None,
    extras: Row | None = None,
) -> Sample | None:
    """Return the sample whose text earns most when it is given to all of some rows.

    The mean of the outcome reward decides, then the weighted sum of all rewards, then the order of
    `candidates`.

    Args:
        rows: of the evaluation.
        samples: their completions.
        rewards: as `rewards_for_constants` returns them.
        outcome: the name of the outcome reward; if it is not among `rewards`, the weighted sum
            decides.
        weights: of the rewards by name; `None`: all are 1.
        extras: further arguments of every reward.

    Returns:
        `None` if a constant answer says nothing here: without such rewards, with equal rows, or
            with episodes.
    """
    problems = {repr(sorted(row.items(), key=lambda pair: pair[0])) for row in rows}
    if not rewards or len(problems) < 2 or any(sample.episode for sample in samples):
        return None
    trial = rows[:: math.ceil(len(rows) / TRIAL_ROWS)]

    def earned(candidate: Sample) -> tuple[float, float]:
        answers = answer_all(trial, candidate, rewards, extras)
        outcome_mean = 0.0
        total = 0.0
        for name in rewards:
            estimate = over_rows(answers, row_means(answers, name))
            mean = estimate.mean if estimate else 0.0
            if name == outcome:
                outcome_mean = mean
            total += (weights or {}).get(name, 1.0) * mean
        return outcome_mean, total

    return max(candidates(samples, outcome), key=earned, default=None)


def constant_figures(samples: list[Sample], names: Sequence[str]) -> dict[str, float]:
    """Return `NAME_constant` and `NAME_constant_se` of each reward for a constant answer."""
    figures = {}
    for name in names:
        earned = over_rows(samples, row_means(samples, name))
        if earned is not None:
            figures[f"{name}{SUFFIX}"] = earned.mean
        if earned is not None and earned.error is not None:
            figures[f"{name}{SUFFIX}_se"] = earned.error
    return figures


def beats_constant(figures: Mapping[str, Any], key: str) -> bool | None:
    """Return whether a figure exceeds the best constant answer's beyond their standard errors.

    Args:
        figures: of one evaluation, as they are logged.
        key: such as `eval_countdown`, or `eval_rewards/countdown/mean` of TRL's evaluation.

    Returns:
        `None` if one of the two was not logged.
    """
    constant = constant_key(key)
    mean = figures.get(key)
    earned = figures.get(constant)
    if not isinstance(mean, float | int) or not isinstance(earned, float | int):
        return None
    error = figures.get(f"{key}_se")
    earned_error = figures.get(f"{constant}_se")
    return clearly_above(mean, error, earned, earned_error)


def constant_key(key: str) -> str:
    """Return the key of the figure of the best constant answer beside that of a mean."""
    if key.endswith("/mean"):
        return f"{key.removesuffix('/mean')}/constant"
    return f"{key}{SUFFIX}"


def constant_sentence(figures: Mapping[str, Any], key: str, text: str | None = None) -> str | None:
    """Say how a figure compares with that of the best constant answer, quoted if it is known.

    `None` if one of the two was not logged.
    """
    beats = beats_constant(figures, key)
    if beats is None:
        return None
    constant = constant_key(key)
    earned = with_error(figures[constant], figures.get(f"{constant}_se"))
    answer = "the best constant answer"
    if text:
        answer += f" ({short(text)!r})"
    mean = with_error(figures[key], figures.get(f"{key}_se"))
    comparison = f"{key} is {mean}, and {answer}, given to every prompt, earns {earned}."
    return comparison if beats else f"A constant answer would do as well: {comparison}"


def constant_sentences(
    history: Sequence[Mapping[str, Any]], outcome: str, text: str | None = None
) -> list[str]:
    """Compare the outcome reward of each data set's last evaluation with the best constant answer.

    Args:
        history: the logs of the run, oldest first.
        outcome: the name of the outcome reward.
        text: the best constant answer of the last evaluation, if it is known.
    """
    last_logs: dict[str, Mapping[str, Any]] = {}  # by the key of the outcome reward
    for row in history:
        for key in row:
            if is_outcome_key(key, outcome) and constant_key(key) in row:
                last_logs[key] = row
    sentences = []
    for key, row in last_logs.items():
        sentence = constant_sentence(row, key, text if len(last_logs) == 1 else None)
        if sentence is not None:
            sentences.append(sentence)
    return sentences


def is_outcome_key(key: str, outcome: str) -> bool:
    """Return whether a log key is the outcome reward of an evaluation, of all rows or of a task."""
    if not key.startswith("eval_"):
        return False
    of_all_rows = key.endswith((f"_{outcome}", f"rewards/{outcome}/mean"))
    return of_all_rows or ("tasks/" in key and key.endswith(f"/{outcome}"))


def constant_doubts(figures: Mapping[str, Any], outcomes: Sequence[str]) -> list[str]:
    """Return a sentence for each outcome reward, also of tasks, that a constant answer matches."""
    doubts = []
    for key in figures:
        if key.rpartition("/")[2] in outcomes and beats_constant(figures, key) is False:
            sentence = constant_sentence(figures, key)
            assert sentence is not None
            doubts.append(sentence)
    return doubts


def short(text: str, most: int = 60) -> str:
    """Return the beginning of a completion on one line, without terminal control characters."""
    one_line = " ".join(text.split())
    line = "".join(filter(str.isprintable, one_line))
    return line if len(line) <= most else f"{line[:most]} ..."
