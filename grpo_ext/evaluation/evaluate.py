"""One evaluation: completions of some rows, greedily and by sampling, with the figures of each."""

from collections.abc import Callable
from itertools import chain
from typing import Any

from grpo_ext.evaluation.by_task import figures_of, parts_of_tasks
from grpo_ext.evaluation.completions import Completion, Decoding, Row
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
    constants: bool = True,
) -> tuple[dict[str, Any], dict[str, list[Sample]]]:
    """Evaluate greedily, and with `num_samples` above 0 also by sampling.

    The first of `outcomes` that scores a row decides pass@k.

    Args:
        complete: takes rows, a `Decoding` and `progress`, the title of a bar, and returns a list of
            completions for each row, as `generate_completions`.
        rows: with `prompt` and the columns of the rewards.
        rewards: by name.
        outcomes: as `outcomes_of` returns them.
        max_new_tokens: limit of a completion.
        num_samples: sampled completions of each row; 0: only the greedy one.
        temperature: of the sampled ones.
        seed: of the sampled ones.
        constants: whether to add what the best constant answer earns, `countdown_constant` and
            `countdown_constant_se`.

    Returns:
        The summary, `{"n": 193, "greedy": {"countdown": 0.27, "countdown_se": 0.03, ...,
        "length": 28.1, "pass@1": 0.27}, "sampled": {"num_samples": 8, "temperature": 1.0, ...,
        "pass@8": 0.6, "pass@8_se": 0.03}}`, and the samples of each part. With a column "task" each
        part also has the figures of each task, under `tasks/NAME/`.
    """
    settings = {"greedy": Decoding(max_new_tokens, seed=seed)}
    if num_samples:
        settings["sampled"] = Decoding(
            max_new_tokens, temperature, num_samples=num_samples, seed=seed
        )
    summary: dict[str, Any] = {"n": len(rows)}
    samples: dict[str, list[Sample]] = {}
    for part, decoding in settings.items():
        completions = complete(rows, decoding, progress=f"evaluate, {part}")
        check_environment(completions)
        samples[part] = score_completions(rows, completions, rewards)
        summary[part] = {}
        if part == "sampled":
            summary[part] = {"num_samples": num_samples, "temperature": temperature}
        summary[part] |= figures_of(
            rows, samples[part], list(rewards), outcomes, decoding.num_samples
        )
        if constants:
            summary[part] |= constants_by_task(rows, samples[part], rewards, outcomes)
    return summary, samples


def check_environment(completions: list[list[Completion]]) -> None:
    """Raise `EnvironmentFailure` if the environment of these completions failed too often."""
    for completion in chain.from_iterable(completions):
        if completion.episode:  # all episodes share their failures
            failures = completion.episode.rules.failures
            failures.refuse_many(failures.report())
            return


def constants_by_task(
    rows: list[Row], samples: list[Sample], rewards: Rewards, outcomes: list[str]
) -> dict[str, float]:
    """Return the figures of the best constant answer of each task; none where it says nothing."""
    cheap = rewards_for_constants(rewards)
    figures: dict[str, float] = {}
    for part in parts_of_tasks(rows, samples, outcomes):
        best = best_constant(part.rows, part.samples, cheap, part.outcome)
        if best is not None:
            earned = constant_figures(answer_all(part.rows, best, cheap), list(cheap))
            for name, figure in earned.items():
                figures[f"{part.prefix}{name}"] = figure
    return figures
