"""Make the episodes of a batch of rows."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from grpo_ext.environments.base import Row
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import EpisodeRules, answers_texts, episode_rules
from grpo_ext.environments.guarded import protected
from grpo_ext.environments.tools import Tool, ToolEnvironment
from grpo_ext.environments.turn_tokens import TurnTokens

Begin = Callable[[Sequence[Row]], list[Episode]]  # makes an episode of each row


def beginning(given: Any, tokenizer: Any, ends: Collection[int], args: Any) -> Begin:
    """Return a function that makes the episodes of rows in `given`, the `environment` of a recipe.

    `ends` are the tokens that end a turn. `args` has `max_completion_length`, the limit of a whole
    episode, and `chat_template_kwargs`. `ValueError` as for `episode_rules` and `TurnTokens`.
    """
    rules = episode_rules(given)
    answers = answers_texts(rules.probe)
    tokens = TurnTokens(tokenizer, ends, args.chat_template_kwargs, rules.probe.tools(), answers)
    return lambda rows: [Episode(rules, tokens, args.max_completion_length, row) for row in rows]


def beginning_with_tools(
    tools: Sequence[Tool],
    factories: Mapping[str | None, Callable[[], Any]] | None,
    tokenizer: Any,
    ends: Collection[int],
    args: Any,
) -> Begin:
    """Return a function that makes the episodes of rows with tools and environments as TRL's
    trainer takes them.

    Each episode of a batch has an instance of its own, which is reset and used again in later
    batches.

    Args:
        tools: functions that every prompt describes.
        factories: by the name in the column `environment`, or by `None` one for all rows; `None`
            for no environments.
        tokenizer, ends, args: as for `beginning`; `args.max_tool_calling_iterations` limits the
            turns.
    """
    most_calls = args.max_tool_calling_iterations
    if most_calls is None:
        most_calls = sys.maxsize - 1
    making = dict(factories or {None: lambda: None})

    def made_by(name: str | None, number: int) -> ToolEnvironment:
        with protected(name, number, "make"):
            return ToolEnvironment(tools, making[name]())

    pool = {name: [made_by(name, 0)] for name in making}
    classes = sorted({type(made[0].instance).__name__ for made in pool.values()} - {"NoneType"})
    rules = EpisodeRules(
        ToolEnvironment,
        turns=most_calls + 1,
        columns=(),
        name=" or ".join(classes),
    )
    options = args.chat_template_kwargs
    tokens = {
        name: TurnTokens(tokenizer, ends, options, made[0].tools(), False)
        for name, made in pool.items()
    }

    def begin(rows: Sequence[Row]) -> list[Episode]:
        free = {name: iter(made) for name, made in pool.items()}
        episodes = []
        for row in rows:
            row = dict(row)
            name = None if None in pool else row.pop("environment", None)
            if name not in pool:
                factory_names = ", ".join(sorted(map(str, pool)))
                raise ValueError(
                    f"A row has environment {name!r}, which is not among the environments of "
                    f"environment_factory: {factory_names}."
                )
            environment = next(free[name], None)
            if environment is None:
                environment = made_by(name, len(pool[name]))
                pool[name].append(environment)
            limit = args.max_completion_length
            episodes.append(Episode(rules, tokens[name], limit, row, environment))
        return episodes

    return begin
