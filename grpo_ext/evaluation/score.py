"""Score completions with rewards, and compute means with standard errors and pass@k."""

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from grpo_ext.common.estimates import Estimate, mean_of
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_figures import EpisodeCounts
from grpo_ext.evaluation.completions import Completion, Row
from grpo_ext.evaluation.problem import problem_of
from grpo_ext.rewards.batch_rows import scatter

Rewards = dict[str, Any]  # reward name -> callable with TRL's signature
Figures = dict[str, float | None]  # metrics by name; `None` if no sample has a value
OUTCOME = "outcome"  # the name of the outcome reward in the samples of `with_outcome`
RESERVED = {"prompt", "completion", "completion_ids"}


@dataclass(frozen=True)
class Sample:
    """One completion of one row, with the score of each reward, its length, and why it ended.

    The score of a reward that did not score the completion is `None`, and the length is in tokens.
    If the completion is an episode, `episode` is its record, as in `samples.jsonl`, and `counts`
    holds the numbers of its turns, tokens and calls. Rows with the same `problem` are not
    independent (see `problem_of`); `None` means that no other row poses the same problem.
    """

    row: int
    text: str
    rewards: dict[str, float | None]
    length: int
    finish_reason: str = "stop"
    episode: Row | None = None
    counts: EpisodeCounts | None = None
    ids: list[int] | None = None  # token ids, if known
    problem: str | None = None


def score_completions(
    rows: list[Row],
    completions: list[list[Completion]],
    rewards: Rewards,
    extras: Row | None = None,
) -> list[Sample]:
    """Return a sample for each completion, with the scores of all rewards.

    The rewards are not called on completions that are `left_out`; their scores are `None`.

    Args:
        rows: the rows, with `prompt` and the columns that the rewards read.
        completions: the completions of each row.
        rewards: the rewards by name, which may be async functions.
        extras: additional arguments for all rewards, such as TRL's `trainer_state`, `log_extra` and
            `log_metric`.

    Raises:
        RewardFailure: if a guarded reward failed too often.
    """
    flat: list[tuple[int, Completion]] = []  # each with the number of its row
    scored: list[int] = []  # the indices in `flat` of the completions that get scores
    prompts = []
    texts = []
    columns_of_rows = []
    for row, group in enumerate(completions):
        for completion in group:
            prompt, text, columns = completion.for_rewards(rows[row])
            flat.append((row, completion))
            if completion.left_out:  # known only after `for_rewards`, which reads the state
                continue
            scored.append(len(flat) - 1)
            prompts.append(prompt)
            texts.append(text)
            columns_of_rows.append(columns)
    arguments: dict[str, Any] = {
        "prompts": prompts,
        "completion_ids": [flat[number][1].ids for number in scored],
    }
    for name in columns_of_rows[0] if scored else ():
        if name not in RESERVED:
            arguments[name] = [columns[name] for columns in columns_of_rows]
    arguments |= extras or {}
    scores: dict[str, list[float | None]] = {}
    for name, reward in rewards.items():
        returned: Any = []
        if scored:
            returned = reward(completions=texts, **arguments)
        if inspect.iscoroutine(returned):
            returned = asyncio.run(returned)
        scores[name] = scatter(returned, scored, len(flat))
    samples = []
    for number, (row, completion) in enumerate(flat):
        sample_scores = {name: of_reward[number] for name, of_reward in scores.items()}
        sample = Sample(
            row,
            completion.text,
            sample_scores,
            completion.length,
            completion.finish_reason,
            ids=completion.ids,
            problem=problem_of(rows[row], completion, rewards.values()),
        )
        if completion.episode and not completion.episode.single_turn:
            sample = with_episode(sample, completion.episode)
        samples.append(sample)
    return samples


def with_episode(
    sample: Sample, episode: Episode, turn_weights: Mapping[str, float] | None = None
) -> Sample:
    """Return a copy of a sample with the record and the counts of an episode.

    Args:
        sample: the sample to copy.
        episode: the episode that the sample comes from.
        turn_weights: the weight of each number in the environment's state, by name, to record what
            each turn earned; `None` leaves this out.
    """
    return replace(sample, episode=episode.logged(turn_weights), counts=EpisodeCounts.of(episode))


def by_row(samples: list[Sample], name: str | None) -> pd.Series:
    """Return the scores of all samples, indexed by row number; NaN if a sample has no score.

    `name` is the name of the reward. If it is `None`, return the lengths in tokens.
    """
    rows = [sample.row for sample in samples]
    if name is None:
        values: list[float | None] = [sample.length for sample in samples]
    else:
        values = [sample.rewards[name] for sample in samples]
    return pd.Series(values, rows, dtype=float)


def row_means(samples: list[Sample], name: str | None) -> pd.Series:
    """Return the mean score of each row's samples; NaN if none was scored.

    `name` is the name of the reward. If it is `None`, return the mean lengths in tokens.
    """
    return by_row(samples, name).groupby(level=0).mean()


def problems_of(samples: list[Sample], rows: pd.Index) -> list[str | int]:
    """Return the problem id of each row in `rows`, or the row's number if its id is unknown."""
    problems: dict[int, str | int] = {}
    for sample in samples:
        problem = sample.problem
        problems[sample.row] = sample.row if problem is None else problem
    return [problems[row] for row in rows]


def over_rows(samples: list[Sample], values: pd.Series) -> Estimate | None:
    """Return the mean of `values` with its standard error, or `None` if all values are NaN.

    NaN is ignored. The standard error is cluster-robust: rows of the same problem are not treated
    as independent.

    Args:
        samples: the samples, which name the problem of each row.
        values: one value for each row, indexed by row number.
    """
    problems = problems_of(samples, values.index)
    return mean_of(values.to_numpy(dtype=float), problems)


def number_of_problems(samples: list[Sample]) -> int:
    """Return the number of different problems among the rows of `samples`."""
    rows = pd.Index([sample.row for sample in samples])
    return len(set(problems_of(samples, rows)))


def with_errors(estimates: dict[str, Estimate | None]) -> Figures:
    """Return the mean of each estimate under its name, and its standard error under `NAME_se`.

    Both are `None` if the estimate is `None`.
    """
    figures: Figures = {}
    for name, estimate in estimates.items():
        figures[name] = None
        figures[f"{name}_se"] = None
        if estimate is not None:
            figures[name] = estimate.mean
            figures[f"{name}_se"] = estimate.error
    return figures


def length_key(names: Sequence[str]) -> str:
    """Return the name of the length metric.

    It is `length`, or `completion_length` if a reward is called `length`.
    """
    return "completion_length" if "length" in names else "length"


def summarize(samples: list[Sample], names: list[str]) -> Figures:
    """Return the mean of each reward, its standard error under `NAME_se`, and the mean length.

    A mean and its error are `None` if the reward scored no sample. The mean length is in tokens;
    `length_key` returns its key.
    """
    means = {}
    for name in names:
        means[name] = over_rows(samples, row_means(samples, name))
    summary = with_errors(means)
    length = over_rows(samples, row_means(samples, None))
    summary[length_key(names)] = length.mean if length else None
    return summary


def pass_at_k(samples: list[Sample], name: str, k: int) -> Estimate | None:
    """Return the unbiased estimate of pass@k, the chance that at least one of k completions passes.

    A completion passes if its score is 1 or more. The estimate is the mean over rows of
    1 - C(n - c, k) / C(n, k) for n scored samples of which c pass (Chen et al. 2021,
    arXiv 2107.03374, equation 1). Rows with fewer than k scored samples are left out.

    Args:
        samples: at least k samples of each row.
        name: the name of the reward that decides whether a completion passes.
        k: the number of completions of which at least one must pass.

    Returns:
        The estimate, or `None` if no row is left.

    Raises:
        ValueError: if a row has fewer than k samples.
    """
    scores = by_row(samples, name)
    fewest = scores.groupby(level=0).size().min()
    if fewest < k:
        raise ValueError(
            f"pass@{k} needs at least {k} samples of each row, but one row has {fewest}. Lower k, "
            "or draw more samples."
        )
    scored = scores.groupby(level=0).count()
    passed = (scores >= 1).groupby(level=0).sum()
    rates = {}
    for row, n in scored.items():
        if n >= k:
            all_fail = math.comb(n - passed[row], k) / math.comb(n, k)
            rates[row] = 1 - all_fail
    if not rates:
        return None
    return over_rows(samples, pd.Series(rates, dtype=float))


def outcome_figures(samples: list[Sample], name: str, k: int) -> Figures:
    """Return the metrics of the outcome reward `name` for `k` samples of each row.

    These are `pass@1` and, for k above 1, `mean@k` (the mean reward), `pass@k` and `mixed@k` (the
    share of rows whose samples did not all get the same score), each with its standard error under
    `NAME_se` (`None` for a single problem). Samples without a score are left out. `pass@k` also
    leaves out rows with fewer than `k` scored samples.

    Args:
        samples: `k` samples of each row.
        name: the name of the outcome reward.
        k: the number of samples.
    """
    figures = {"pass@1": pass_at_k(samples, name, 1)}
    if k > 1:
        figures[f"mean@{k}"] = over_rows(samples, row_means(samples, name))
        figures[f"pass@{k}"] = pass_at_k(samples, name, k)
        figures[f"mixed@{k}"] = mixed_share(samples, name)
    return with_errors(figures)


def mixed_rows(samples: list[Sample], name: str) -> pd.Series:
    """Return, for each row, whether the reward `name` gave its samples different scores.

    Rows without a score are left out.
    """
    scores = by_row(samples, name).dropna()
    scores = scores.astype("float32")  # the trainer compares float32 too
    return scores.groupby(level=0).nunique() > 1


def mixed_share(samples: list[Sample], name: str) -> Estimate | None:
    """Return the share of rows whose samples got different scores from the reward `name`.

    With k samples per row, this estimates the share of groups with signal when training with
    `num_generations: k`. Rows without a score are left out; if no row is left, return `None`.
    """
    return over_rows(samples, mixed_rows(samples, name))


def with_outcome(samples: list[Sample], outcomes: Sequence[str]) -> list[Sample]:
    """Return copies of the samples with only the outcome reward's score, under the name `OUTCOME`.

    The outcome reward of a row is the first of `outcomes` that scored any of the row's samples. A
    sample's score is `None` if there is no such reward, or if this reward did not score the sample.
    """
    judges: dict[int, str] = {}  # by row
    for name in reversed(outcomes):  # reversed, so that the first one prevails
        for sample in samples:
            if sample.rewards[name] is not None:
                judges[sample.row] = name
    judged = []
    for sample in samples:
        score = None
        if sample.row in judges:
            score = sample.rewards[judges[sample.row]]
        judged.append(replace(sample, rewards={OUTCOME: score}))
    return judged
