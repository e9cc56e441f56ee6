"""Makes the episodes of a batch of rows."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from grpo_ext.environments.base import Environment, Row
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.rules import EpisodeRules, episode_rules
from grpo_ext.environments.tools import Tool, ToolEnvironment
from grpo_ext.environments.turn_tokens import TurnTokens

Begin = Callable[[Sequence[Row]], list[Episode]]  # makes an episode of each row


def beginning(given: Any, tokenizer: Any, ends: Collection[int], args: Any) -> Begin:
    """Return a function that makes the episodes of rows in the environment of a recipe.

    Args:
        given: `environment` of a recipe.
        tokenizer: of the model.
        ends: tokens that end a turn.
        args: with `max_completion_length`, of a whole episode, and `chat_template_kwargs`.

    Raises:
        ValueError: for an unknown environment or option, or a chat template that does not keep turns as they were sampled.
    """
    rules = episode_rules(given)
    answers = type(rules.probe).step is not Environment.step
    tokens = TurnTokens(tokenizer, ends, args.chat_template_kwargs, rules.probe.tools(), answers)
    return lambda rows: [Episode(rules, tokens, args.max_completion_length, row) for row in rows]


def beginning_with_tools(
    tools: Sequence[Tool],
    factories: Mapping[str | None, Callable[[], Any]] | None,
    tokenizer: Any,
    ends: Collection[int],
    args: Any,
) -> Begin:
    """Return a function that makes the episodes of rows with tools and environments as TRL's trainer takes them.

    An instance of a factory is reset for each episode, and kept for further ones. Instances of a batch are separate.

    Args:
        tools: functions that all prompts describe.
        factories: by name, of `environment` in a row; by `None` the one of all rows; `None` for no environments.
        tokenizer, ends, args: as for `beginning`; `args.max_tool_calling_iterations` bounds the turns.

    Raises:
        ValueError: if a chat template does not keep turns as they were sampled; for a row with an unknown environment.
    """
    if (most := args.max_tool_calling_iterations) is None:
        most = sys.maxsize - 1
    named = factories is not None and None not in factories
    making = dict(factories or {None: lambda: None})
    pool = {name: [ToolEnvironment(tools, make())] for name, make in making.items()}
    options = args.chat_template_kwargs
    tokens = {name: TurnTokens(tokenizer, ends, options, made[0].tools(), False) for name, made in pool.items()}
    rules = EpisodeRules(ToolEnvironment, turns=most + 1, columns=())

    def begin(rows: Sequence[Row]) -> list[Episode]:
        used: Counter[str | None] = Counter()
        episodes = []
        for row in rows:
            name = row.get("environment") if named else None
            if name not in pool:
                known = ", ".join(sorted(map(str, pool)))
                raise ValueError(f"A row has environment {name!r}; environment_factory has {known}.")
            if used[name] == len(pool[name]):
                pool[name].append(ToolEnvironment(tools, making[name]()))
            environment = pool[name][used[name]]
            used[name] += 1
            told = {key: value for key, value in row.items() if not (named and key == "environment")}
            episodes.append(Episode(rules, tokens[name], args.max_completion_length, told, environment))
        return episodes

    return begin
