"""Create the episodes for a batch of rows."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_ext.common.columns import ENVIRONMENT
from grpo_ext.common.stop_strings import stop_strings_of
from grpo_ext.common.suggestions import unknown
from grpo_ext.environments.base import Row
from grpo_ext.environments.episode import Episode, open_all
from grpo_ext.environments.episode_rules import EpisodeRules, answers_texts, episode_rules
from grpo_ext.environments.guarded import protected
from grpo_ext.environments.open_environments import add_open, is_open
from grpo_ext.environments.single_turn import SingleTurnTokens, single_turn_rules
from grpo_ext.environments.tools import Tool, ToolEnvironment
from grpo_ext.environments.turn_tokens import TurnTokens

NO_COLUMN = (
    "environments: the rows have no column `environment`, which names each row's environment. Add "
    "the column. If all rows have the same environment, you can instead set `environment` and "
    "remove `environments`."
)
Game = tuple[EpisodeRules, TurnTokens]
Begin = Callable[[Sequence[Row]], list[Episode]]  # creates an episode for each row


def beginning(
    environments: Mapping[str, str | Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    ends: Collection[int],
    args: Any,
) -> Begin:
    """Return a function that creates an episode for each row, in the environment of that row.

    If the recipe has one environment for all rows, every row is played in that environment.
    Otherwise, each row names its environment in the column `environment`: a row that names none is
    completed in a single turn, and a row that names an unknown environment makes the returned
    function raise `ValueError`. The returned function waits until `reset` has returned in all
    episodes.

    Args:
        environments: the recipe's environments by name; an environment for all rows has the name
            "".
        tokenizer: the model's tokenizer.
        ends: the ids of the tokens that end a turn.
        args: the training arguments; `max_completion_length` limits a whole episode,
            `chat_template_kwargs` are passed to the template, and `generation_kwargs` may contain
            stop strings.

    Raises:
        ValueError: if an environment cannot be created or cannot answer the model, or if the chat
            template or the stop strings are not supported.
    """
    games: dict[str | None, Game] = {}
    for name, environment in environments.items():
        rules = episode_rules(environment, name)
        tokens = TurnTokens(
            tokenizer,
            ends,
            args.chat_template_kwargs,
            rules.probe.tools(),
            answers_texts(rules.probe),
            stop_strings_of(args.generation_kwargs),
        )
        games[name] = (rules, tokens)
    if "" not in games:
        games[None] = (single_turn_rules(), SingleTurnTokens(tokenizer, ends, args))

    def begin(rows: Sequence[Row]) -> list[Episode]:
        limit = args.max_completion_length
        episodes = []
        for row in rows:
            name: str | None = ""
            if "" not in games:
                row = dict(row)
                name = row.pop(ENVIRONMENT, None)
                check_environment_names([name], environments)
            rules, tokens = games[name]
            episodes.append(Episode(rules, tokens, limit, row, wait=False))
        return opened(episodes)

    return begin


def check_environment_names(names: Iterable[object], environments: Collection[str]) -> None:
    """Check the values of the column `environment`, for a recipe with the key `environments`.

    Args:
        names: the values in the column; `None` for rows that are completed in a single turn.
        environments: the names of the recipe's environments.

    Raises:
        ValueError: if a value is neither `None` nor the name of an environment.
    """
    for name in names:
        if name is None or (isinstance(name, str) and name in environments):
            continue
        raise ValueError(
            "environments: the column `environment` of a row has an "
            f"{unknown('environment', str(name)[:100], environments)} For a row without an "
            "environment, use null."
        )


def opened(episodes: list[Episode]) -> list[Episode]:
    """Wait until `reset` has returned in all episodes, and return the episodes."""
    open_all(episodes)
    return episodes


def beginning_with_tools(
    tools: Sequence[Tool],
    factories: Mapping[str | None, Callable[[], Any]] | None,
    tokenizer: PreTrainedTokenizerBase,
    ends: Collection[int],
    args: Any,
) -> Begin:
    """Return a function that creates an episode for each row, with TRL's tools and environments.

    Each episode of a batch has its own instance of the environment. Later batches reuse the
    instances, which are reset for each episode and closed when the run ends. The returned function
    waits until `reset` has returned in all episodes. If there are factories by name, it raises
    `ValueError` for a row that names no environment, or one that is not in `factories`.

    Args:
        tools: functions that the model may call in every episode.
        factories: functions that create environments, by the name in the column `environment`; a
            single factory for all rows has the key `None`. If `factories` is `None`, episodes have
            only `tools`.
        tokenizer: the model's tokenizer.
        ends: the ids of the tokens that end a turn.
        args: the training arguments; `max_completion_length` limits a whole episode,
            `max_tool_calling_iterations` limits its turns with tool calls, `chat_template_kwargs`
            are passed to the template, and `generation_kwargs` may contain stop strings.

    Raises:
        ValueError: if the chat template or the stop strings are not supported. Errors of the
            factories are raised unchanged.
    """
    max_calls = args.max_tool_calling_iterations
    if max_calls is None:
        max_calls = sys.maxsize - 1
    makers = dict(factories or {None: lambda: None})

    def make(name: str | None, number: int) -> ToolEnvironment:
        with protected(name, number, "make"):
            instance = makers[name]()
            return ToolEnvironment(tools, instance)

    # the environments and the `TurnTokens` for each name
    pool = {name: [make(name, 0)] for name in makers}
    tokens = {}
    classes = set()
    for name, [environment] in pool.items():
        tokens[name] = TurnTokens(
            tokenizer,
            ends,
            args.chat_template_kwargs,
            environment.tools(),
            answers_texts=False,
            stop_strings=stop_strings_of(args.generation_kwargs),
        )
        if environment.instance is not None:
            classes.add(type(environment.instance).__name__)
    rules = EpisodeRules(
        ToolEnvironment,
        turns=max_calls + 1,
        columns=(),
        name=" or ".join(sorted(classes)),
    )
    for environments in pool.values():
        add_open(environments[0], rules, lasting=True)

    def begin(rows: Sequence[Row]) -> list[Episode]:
        limit = args.max_completion_length
        num_used: Counter[str | None] = Counter()
        episodes = []
        for row in rows:
            row = dict(row)
            name = None if None in pool else row.pop("environment", None)
            if name not in pool:
                factory_names = ", ".join(sorted(map(str, pool)))
                if name is None:
                    raise ValueError(
                        "A row names no environment, because its column `environment` is missing "
                        f"or null. Set it to a name in environment_factory: {factory_names}."
                    )
                raise ValueError(
                    f"A row has the environment {name!r}, which is not in environment_factory. "
                    f"Choose one of its names: {factory_names}."
                )
            environments = pool[name]
            number = num_used[name]
            if number == len(environments) or not is_open(environments[number]):
                environments[number : number + 1] = [make(name, number)]
                add_open(environments[number], rules, lasting=True)
            environment = environments[number]
            num_used[name] += 1
            episodes.append(Episode(rules, tokens[name], limit, row, environment, wait=False))
        return opened(episodes)

    return begin
