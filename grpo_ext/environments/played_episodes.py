"""Collect masks, messages, failures and times from the episodes of a generation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_ext.environments.episode import Episode
from grpo_ext.environments.failures import FailureReport
from grpo_ext.step.records import Generation


def instances(episodes: Sequence[Episode]) -> list[Any]:
    """Return each episode's TRL environment, or `None` for an episode without one.

    The list is empty if no episode has a TRL environment.
    """
    instances = [getattr(episode.environment, "instance", None) for episode in episodes]
    if all(instance is None for instance in instances):
        return []
    return instances


def reports_of(episodes: Sequence[Episode]) -> list[FailureReport]:
    """Return a report on each method and tool of the episodes' environments.

    The reports cover all calls in this process since the previous reports.
    """
    all_rules = {id(episode.rules): episode.rules for episode in episodes}
    reports = []
    for rules in all_rules.values():
        reports += rules.failures.report()
    return reports


def seconds_alone(episodes: Sequence[Episode]) -> float:
    """Return the seconds spent only on the environments' code since this was last called.

    Time spent waiting for that code is included, but time in which environments answer in the
    background while the model generates is not.
    """
    all_rules = {id(episode.rules): episode.rules for episode in episodes}
    return sum(rules.stopwatch.take() for rules in all_rules.values())


def of_episodes(generation: Generation, episodes: Sequence[Episode]) -> Generation:
    """Return a copy of a generation with the masks, messages and columns of its episodes.

    `cut` is `True` for episodes that were truncated or have not ended. `episodes` must not be
    empty.
    """
    columns = [episode.columns() for episode in episodes]
    extra_fields = {}
    for name in columns[0]:
        extra_fields[name] = [row[name] for row in columns]
    return replace(
        generation,
        tool_mask=[episode.mask for episode in episodes],
        messages=[episode.messages for episode in episodes],
        cut=[episode.truncated or not episode.ended for episode in episodes],
        extra_fields=extra_fields,
    )
