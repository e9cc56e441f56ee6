"""The best constant answer: the completion that scores best when it is given to every prompt.

If a constant answer satisfies a reward, the reward can rise although no answer depends on its
prompt. Comparing the model's score with that of the best constant answer reveals this. The
candidates are completions of the evaluation itself: the most frequent ones and those with the best
scores. They are tried on some of the rows, and the best of them is scored on all rows.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
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

CANDIDATES = 8  # maximum number of completions to try
TRIAL_ROWS = 32  # maximum number of rows on which each candidate is tried
SUFFIX = "_constant"  # ending of the metrics' names


def rewards_for_constants(rewards: Mapping[str, Any]) -> Rewards:
    """Return the rewards, by name, that are cheap enough to score constant answers with.

    Only guarded functions are returned. Their time limits still apply, but their failures are
    neither counted nor logged. Reward models, async functions and registered rewards that query a
    server or load a model are left out.
    """
    cheap: Rewards = {}
    for name, guard in rewards.items():
        is_function = isinstance(guard, Guard) and not isinstance(guard, AsyncGuard)
        if is_function and not is_costly(guard):
            cheap[name] = guard.try_out
    return cheap


def is_costly(guard: Guard) -> bool:
    """Return whether a reward's registration says that it queries a server or loads a model."""
    if not isinstance(guard.reward, Reward):
        return False
    registration = guard.reward.registration
    return registration.asks_server or registration.loads_model


def candidates(samples: Sequence[Sample], outcome: str) -> list[Sample]:
    """Return at most `CANDIDATES` samples with distinct texts: the most frequent, then the best.

    At most `CANDIDATES // 2` of them are chosen by frequency. The others are those with the highest
    scores from the reward `outcome`; if it scored no sample, there are no others.
    """
    counts = Counter(sample.text for sample in samples)
    texts = [text for text, _ in counts.most_common(CANDIDATES // 2)]
    scores = []
    for sample in samples:
        score = sample.rewards.get(outcome)
        if score is not None:
            scores.append((score, sample.text))
    scores.sort(key=itemgetter(0), reverse=True)
    texts += [text for _, text in scores]
    first = {sample.text: sample for sample in reversed(samples)}  # first sample of each text
    distinct_texts = list(dict.fromkeys(texts))
    return [first[text] for text in distinct_texts[:CANDIDATES]]


def answer_all(
    rows: list[Row],
    answer: Sample,
    rewards: Rewards,
    extras: Row | None = None,
) -> list[Sample]:
    """Return one sample for each row, scored as if the model had answered every row with `answer`.

    Args:
        rows: the rows, with `prompt` and the columns that the rewards read.
        answer: the sample whose text, token ids and finish reason every row gets.
        rewards: the rewards from `rewards_for_constants`.
        extras: additional arguments for every reward.
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
    """Return the sample whose text scores best as an answer to every row.

    The `candidates` are tried on at most `TRIAL_ROWS` evenly spaced rows. The mean of the outcome
    reward decides; ties are broken by the weighted sum of all rewards, then by the order of the
    candidates.

    Args:
        rows: the evaluated rows.
        samples: the completions of `rows`.
        rewards: the rewards from `rewards_for_constants`.
        outcome: the name of the outcome reward; if it is not in `rewards`, the weighted sum
            decides.
        weights: the weights of the rewards by name; `None` means that all are 1.
        extras: additional arguments for every reward.

    Returns:
        The sample, or `None` if a constant answer is meaningless: there are no rewards or no
        samples, there are fewer than two distinct rows, or a sample is an episode.
    """
    distinct_rows = {repr(sorted(row.items(), key=itemgetter(0))) for row in rows}
    has_episodes = any(sample.episode for sample in samples)
    if not rewards or len(distinct_rows) < 2 or has_episodes:
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
    """Return the metrics `NAME_constant` (a mean) and `NAME_constant_se` for each reward.

    Rewards that scored no sample are left out, and so are unknown standard errors.

    Args:
        samples: the samples of the constant answer, from `answer_all`.
        names: the names of the rewards.
    """
    figures = {}
    for name in names:
        earned = over_rows(samples, row_means(samples, name))
        if earned is not None:
            figures[f"{name}{SUFFIX}"] = earned.mean
        if earned is not None and earned.error is not None:
            figures[f"{name}{SUFFIX}_se"] = earned.error
    return figures


def beats_constant(figures: Mapping[str, Any], key: str) -> bool | None:
    """Return whether a metric is significantly above the score of the best constant answer.

    Unknown standard errors count as 0.

    Args:
        figures: the logged metrics of one evaluation.
        key: the name of the metric, such as `eval_countdown`, or `eval_rewards/countdown/mean` in
            TRL's own evaluation.

    Returns:
        The result, or `None` if one of the two metrics was not logged.
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
    """Return the name of the metric that holds the best constant answer's score.

    `key` is the name of the metric that the score is compared with.
    """
    if key.endswith("/mean"):
        return f"{key.removesuffix('/mean')}/constant"
    return f"{key}{SUFFIX}"


def constant_sentence(
    figures: Mapping[str, Any],
    key: str,
    text: str | None = None,
) -> str | None:
    """Return a sentence that compares a metric with the score of the best constant answer.

    Args:
        figures: the logged metrics of one evaluation.
        key: the name of the metric.
        text: the best constant answer, which the sentence quotes; `None` or "" if it is unknown.

    Returns:
        The sentence, or `None` if one of the two metrics was not logged.
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
    if beats:
        return comparison
    return f"Not clearly better than a constant answer: {comparison}"


def constant_sentences(
    history: Sequence[Mapping[str, Any]],
    outcome: str,
    text: str | None = None,
) -> list[str]:
    """Return sentences that compare an outcome reward with the best constant answer.

    There is one sentence for each evaluation dataset or task. It describes the last evaluation that
    scored a constant answer; if none did, there is no sentence.

    Args:
        history: the logs of the run, oldest first.
        outcome: the name of the outcome reward.
        text: the best constant answer of the last evaluation, if it is known. It is quoted only if
            there is a single sentence.
    """
    last_logs: dict[str, Mapping[str, Any]] = {}  # by the key of the outcome reward
    for row in history:
        for key in row:
            if is_outcome_key(key, outcome) and constant_key(key) in row:
                last_logs[key] = row
    if len(last_logs) > 1:
        text = None
    sentences = []
    for key, row in last_logs.items():
        sentence = constant_sentence(row, key, text)
        if sentence is not None:
            sentences.append(sentence)
    return sentences


def is_outcome_key(key: str, outcome: str) -> bool:
    """Return whether `key` is an evaluation metric of `outcome`, over all rows or for one task.

    `outcome` is the name of a reward. Only the beginning and the end of `key` are compared, so
    `eval_my_acc` also counts as a metric of the reward `acc`.
    """
    if not key.startswith("eval_"):
        return False
    of_all_rows = key.endswith((f"_{outcome}", f"rewards/{outcome}/mean"))
    return of_all_rows or ("tasks/" in key and key.endswith(f"/{outcome}"))


def constant_doubts(figures: Mapping[str, Any], outcomes: Sequence[str]) -> list[str]:
    """Return a sentence for each outcome metric that is not clearly above the best constant answer.

    Metrics without a constant answer's score are left out.

    Args:
        figures: the metrics of one evaluation, such as `countdown` or `tasks/NAME/countdown`.
        outcomes: the names of the outcome rewards.
    """
    doubts = []
    for key in figures:
        _, _, name = key.rpartition("/")
        if name in outcomes and beats_constant(figures, key) is False:
            sentence = constant_sentence(figures, key)
            assert sentence is not None
            doubts.append(sentence)
    return doubts


def short(text: str, most: int = 60) -> str:
    """Return `text` on one line, with collapsed whitespace and without unprintable characters.

    If the line is longer than `most` characters, the rest is replaced with ` ...`.
    """
    one_line = " ".join(text.split())
    line = "".join(filter(str.isprintable, one_line))
    if len(line) > most:
        line = f"{line[:most]} ..."
    return line
