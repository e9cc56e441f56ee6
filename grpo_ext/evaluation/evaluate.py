"""Evaluate a model on some rows, greedily and by sampling."""

from collections.abc import Callable
from typing import Any

from grpo_ext.environments.failures import refuse_many
from grpo_ext.environments.open_environments import close_played
from grpo_ext.environments.played_episodes import reports_of
from grpo_ext.evaluation.by_task import figures_of, parts_of_tasks
from grpo_ext.evaluation.completions import Completion, Decoding, Row, episodes_of
from grpo_ext.evaluation.constant import (
    answer_all,
    best_constant,
    constant_figures,
    rewards_for_constants,
)
from grpo_ext.evaluation.score import Rewards, Sample, score_completions


def evaluate(
    complete: Callable[..., list[list[Completion]]],
    rows: list[Row],
    rewards: Rewards,
    outcomes: list[str],
    *,
    max_new_tokens: int,
    num_samples: int = 8,
    temperature: float = 1.0,
    seed: int = 0,
    stop_strings: tuple[str, ...] = (),
    constants: bool = True,
) -> tuple[dict[str, Any], dict[str, list[Sample]]]:
    """Evaluate a model by greedy decoding and, if `num_samples` is above 0, also by sampling.

    The pass@k of a row uses one reward: the first of `outcomes` that scored any of the row's
    samples. Environments are closed after their episodes have been scored, unless they are
    registered as `lasting`.

    Args:
        complete: a function that is called with rows, a `Decoding` and the keyword `progress` (the
            title of a progress bar), and returns a list of completions for each row.
        rows: the rows, with `prompt` and the columns that the rewards read.
        rewards: the rewards by name.
        outcomes: the names of the outcome rewards, from `outcomes_of`.
        max_new_tokens: the maximum number of tokens in a completion.
        num_samples: the number of sampled completions of each row; if 0, only the greedy one is
            generated.
        temperature: the temperature of the sampled completions.
        seed: the seed for sampling.
        stop_strings: strings that end a completion; episodes have their own.
        constants: whether to add the scores of the best constant answer, such as
            `countdown_constant` and `countdown_constant_se`.

    Returns:
        A pair: the summary, and the samples of each part, `greedy` and `sampled`. The summary is
        `{"n": 193, "greedy": {"countdown": 0.27, "countdown_se": 0.03, ..., "length": 28.1,
        "pass@1": 0.27}, "sampled": {"num_samples": 8, "temperature": 1.0, ..., "pass@8": 0.6,
        "pass@8_se": 0.03}}`. If the rows have a column "task", each part of the summary also has
        the metrics of each task, under `tasks/NAME/`.

    Raises:
        ValueError: if `num_samples` is above 1 and `temperature` is 0.
        EnvironmentFailure, RewardFailure: if the environment or a reward failed too often.
    """
    settings = {"greedy": Decoding(max_new_tokens, seed=seed, stop_strings=stop_strings)}
    if num_samples:
        settings["sampled"] = Decoding(
            max_new_tokens,
            temperature,
            num_samples=num_samples,
            seed=seed,
            stop_strings=stop_strings,
        )
    summary: dict[str, Any] = {"n": len(rows)}
    samples: dict[str, list[Sample]] = {}
    for part, decoding in settings.items():
        completions = complete(rows, decoding, progress=f"evaluate, {part}")
        try:
            check_environment(completions)
            samples[part] = score_completions(rows, completions, rewards)
        finally:
            close_played(episode.rules for episode in episodes_of(completions))
        summary[part] = {}
        if part == "sampled":
            summary[part] = {"num_samples": num_samples, "temperature": temperature}
        summary[part] |= figures_of(
            rows,
            samples[part],
            list(rewards),
            outcomes,
            decoding.num_samples,
        )
        if constants:
            summary[part] |= constants_by_task(rows, samples[part], rewards, outcomes)
    return summary, samples


def check_environment(completions: list[list[Completion]]) -> None:
    """Raise `EnvironmentFailure` if an environment failed too often in these completions.

    Args:
        completions: the completions of each row; those without an episode are ignored.
    """
    refuse_many(reports_of(episodes_of(completions)))


def constants_by_task(
    rows: list[Row],
    samples: list[Sample],
    rewards: Rewards,
    outcomes: list[str],
) -> dict[str, float]:
    """Return the metrics of each task's best constant answer, under `tasks/NAME/`.

    If the rows have no column "task", there is a single best constant answer for all rows, and its
    metrics have no prefix. Tasks for which `best_constant` returns `None` are left out.

    Args:
        rows: the evaluated rows.
        samples: the completions of `rows`.
        rewards: all rewards by name; only the `rewards_for_constants` are used.
        outcomes: the outcome rewards in the order of `outcome_order`.
    """
    cheap = rewards_for_constants(rewards)
    figures: dict[str, float] = {}
    for part in parts_of_tasks(rows, samples, outcomes):
        best = best_constant(part.rows, part.samples, cheap, part.outcome)
        if best is not None:
            answers = answer_all(part.rows, best, cheap)
            earned = constant_figures(answers, list(cheap))
            for name, figure in earned.items():
                figures[f"{part.prefix}{name}"] = figure
    return figures
