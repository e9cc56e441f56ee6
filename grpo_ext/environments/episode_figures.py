"""Figures of episodes: turns, limits, failures, calls, tokens and time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Self

from grpo_ext.environments.episode import Episode


@dataclass(frozen=True)
class EpisodeCounts:
    """The counts of one episode: its turns, tokens, calls, failures and seconds."""

    turns: int
    at_turn_limit: bool  #: ended because it reached the maximum number of turns
    at_length_limit: bool  #: ended because no room was left for tokens
    cut_answers: int  #: answers of the environment that were too long and have been cut off
    failures: int  #: calls on which the environment failed, including those before a retry
    left_out: bool  #: neither scored nor trained on, because the environment failed
    tokens: int  #: tokens that the model wrote
    seconds: float  #: seconds until `reset` and the answers of the environment returned
    calls: int  #: calls of tools, including those that could not be read
    failed_calls: int
    calls_by_tool: dict[str, int]  #: for each tool of the environment; empty if it has none
    environment: str = ""  #: name of its entry in `environments`; empty without that key

    @classmethod
    def of(cls, episode: Episode) -> Self:
        """Return the counts of an episode."""
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
    """Return the counts of each episode, leaving out rows without an environment."""
    return [EpisodeCounts.of(episode) for episode in episodes if not episode.single_turn]


def episode_figures(counts: Sequence[EpisodeCounts]) -> dict[str, float]:
    """Return means over episodes; with tools, add the figures of tool calls, named as in TRL.

    `tokens_per_turn` is a mean over turns, and `failure_frequency` a share of the calls. For the
    turns and the environment's time, the sample standard deviation over the episodes (0 for a
    single episode) and the maximum are added. Without episodes, the dict is empty.
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
    """Return the standard deviation and the maximum of a figure of episodes, by name."""
    std = stdev(values) if len(values) > 1 else 0.0
    return {f"{name}/std": std, f"{name}/max": max(values)}


def figures_by_environment(counts: Sequence[EpisodeCounts]) -> dict[str, float]:
    """Return the `episode_figures` of each environment, under `environments/NAME/`.

    There are none in a recipe with one `environment` for all rows.
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
