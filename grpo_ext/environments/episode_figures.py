"""Metrics of episodes: turns, limits, failures, tool calls, tokens and time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Self

from grpo_ext.environments.episode import Episode


@dataclass(frozen=True)
class EpisodeCounts:
    """The counts of one episode: its turns, tokens, tool calls, failures and seconds."""

    turns: int
    at_turn_limit: bool  #: whether it ended because it reached the maximum number of turns
    at_length_limit: bool  #: whether it ended because no room was left for more tokens
    cut_answers: int  #: number of the environment's answers that were cut off as too long
    failures: int  #: calls on which the environment failed, including those before a retry
    #: whether the environment failed, so that the episode is neither scored nor trained on
    left_out: bool
    tokens: int  #: tokens that the model wrote
    seconds: float  #: seconds that `reset` and the environment's answers took
    calls: int  #: tool calls, including those that could not be parsed
    failed_calls: int  #: tool calls that failed for any reason
    calls_by_tool: dict[str, int]  #: calls of each of the environment's tools, by name
    environment: str = ""  #: name of its entry in `environments`; empty without that key

    @classmethod
    def of(cls, episode: Episode) -> Self:
        """Create the counts from a played episode."""
        world = episode.world
        names = [tool.__name__ for tool in world.tools]
        return cls(
            turns=episode.turns,
            at_turn_limit=episode.end == "turns",
            at_length_limit=episode.truncated,
            cut_answers=episode.cut_answers,
            failures=episode.failures,
            left_out=episode.left_out,
            tokens=sum(episode.mask),
            seconds=episode.seconds,
            calls=world.calls,
            failed_calls=world.failed_calls,
            calls_by_tool={name: world.calls_by_tool[name] for name in names},
            environment=episode.rules.label,
        )


def counts_of(episodes: Sequence[Episode]) -> list[EpisodeCounts]:
    """Return the counts of each episode whose row has an environment."""
    return [EpisodeCounts.of(episode) for episode in episodes if not episode.single_turn]


def episode_figures(counts: Sequence[EpisodeCounts]) -> dict[str, float]:
    """Return the metrics of a set of episodes, by name; the dict is empty if there are none.

    The metrics `turns`, `at_turn_limit`, `at_length_limit`, `answers_cut`, `failures`, `left_out`
    and `environment_time` (in seconds), with the prefix `episodes/`, are means over the episodes;
    `episodes/tokens_per_turn` is a mean over turns. For `episodes/turns` and
    `episodes/environment_time`, the standard deviation `.../std` and the maximum `.../max` are
    added.

    If an environment has tools, tool-call metrics are added: `tools/call_frequency` (calls per
    episode) and `tools/failure_frequency` (the share of calls that failed), which TRL logs as well,
    and `tools/NAME/call_frequency` (calls of one tool per episode).
    """
    if not counts:
        return {}
    number = len(counts)
    turns = sum(count.turns for count in counts)
    figures = {
        "episodes/turns": turns / number,
        "episodes/at_turn_limit": sum(count.at_turn_limit for count in counts) / number,
        "episodes/at_length_limit": sum(count.at_length_limit for count in counts) / number,
        "episodes/answers_cut": sum(count.cut_answers for count in counts) / number,
        "episodes/failures": sum(count.failures for count in counts) / number,
        "episodes/left_out": sum(count.left_out for count in counts) / number,
        "episodes/tokens_per_turn": sum(count.tokens for count in counts) / max(turns, 1),
        "episodes/environment_time": sum(count.seconds for count in counts) / number,
    }
    figures |= spread("episodes/turns", [count.turns for count in counts])
    figures |= spread("episodes/environment_time", [count.seconds for count in counts])
    by_tool: Counter[str] = Counter()
    for count in counts:
        by_tool.update(count.calls_by_tool)
    if by_tool:
        calls = sum(count.calls for count in counts)
        failed_calls = sum(count.failed_calls for count in counts)
        figures["tools/call_frequency"] = calls / number
        figures["tools/failure_frequency"] = failed_calls / max(calls, 1)
        for name in sorted(by_tool):
            figures[f"tools/{name}/call_frequency"] = by_tool[name] / number
    return figures


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the standard deviation and the maximum of `values`, as `{name}/std` and `{name}/max`.

    The sample standard deviation is used, with n - 1 in the denominator; it is 0 for a single
    value. If `values` is empty, `ValueError` is raised.
    """
    std = stdev(values) if len(values) > 1 else 0.0
    return {f"{name}/std": std, f"{name}/max": max(values)}


def figures_by_environment(counts: Sequence[EpisodeCounts]) -> dict[str, float]:
    """Return the `episode_figures` of each entry in `environments`, as `environments/NAME/...`.

    Entries without episodes are left out. The dict is empty if the recipe has one `environment` for
    all rows.
    """
    by_environment: dict[str, list[EpisodeCounts]] = {}
    for count in counts:
        if count.environment:
            by_environment.setdefault(count.environment, []).append(count)
    figures = {}
    for name, of_environment in sorted(by_environment.items()):
        for key, figure in episode_figures(of_environment).items():
            figures[f"environments/{name}/{key}"] = figure
    return figures
