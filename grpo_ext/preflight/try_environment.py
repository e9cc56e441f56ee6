"""A trial of a recipe's environment: the prompts of its first episodes, and a few turns on made-up
completions.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from transformers import GenerationConfig

from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import episode_rules
from grpo_ext.environments.start_episodes import Begin, beginning
from grpo_ext.environments.tools import ToolEnvironment
from grpo_ext.evaluation.completions import end_tokens
from grpo_ext.preflight.first_rows import quiet
from grpo_ext.preflight.tokenized_prompts import look_at_prompts, prompt_figures, where_from
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards.scores import in_full

EPISODES = 32  # most environments that are reset to see their prompts
TURNS = 3  # most turns that are tried in an episode
BUDGET = 4.0  # seconds after which no further episode or turn begins
LOGGER = "grpo_ext.environments.failures"  # its warnings become findings


def begin_episodes(recipe: Recipe, tokenizer: Any, findings: Findings) -> Begin | None:
    """Return the function that makes the episodes of rows; `None` without an environment or
    tokenizer, or after a problem.
    """
    refused = any(problem.key == "environment" for problem in findings.problems)
    if recipe.flat["environment"] is None or tokenizer is None or refused:
        return None
    v = recipe.flat
    config = GenerationConfig()
    with suppress(OSError):  # the model has no generation config
        config = GenerationConfig.from_pretrained(v["model_name_or_path"], **where_from(v))
    try:
        probe = episode_rules(v["environment"]).probe
        if isinstance(probe, ToolEnvironment) and hasattr(probe.instance, "step"):
            findings.note(
                "environment: the class is no subclass of grpo_ext.Environment, so its method step "
                "is a tool that the model calls. Make it a subclass if step should answer the "
                "model's turns.",
                "environment",
            )
        return beginning(
            v["environment"], tokenizer, end_tokens(tokenizer, config), recipe.training
        )
    except ValueError as error:
        findings.problem(error, "environment")
    except Exception as error:  # whatever a user's class raises
        findings.problem(f"environment: {in_full(error).splitlines()[-1]}", "environment")
    return None


def read_prompts(
    recipe: Recipe, rows: list[dict[str, Any]], tokenizer: Any, findings: Findings
) -> tuple[dict[str, Any] | None, Begin | None]:
    """Return the `prompt_figures` of the prompts as the model reads them, and the function that
    makes the episodes of rows.

    Both are `None` where there are none, or after a problem. With an environment the prompts are
    those of its episodes: they describe its tools, and end with the text of `reset`.
    """
    v = recipe.flat
    begin = begin_episodes(recipe, tokenizer, findings)
    if begin is None:
        return look_at_prompts([row["prompt"] for row in rows], tokenizer, v, findings), None
    try:
        ids = [episode.prompt_ids for episode in first_episodes(begin, rows)]
    except Exception as error:  # a row without a conversation, or whatever a template raises
        findings.problem(f"environment: a prompt cannot be written: {error}", "environment")
        return None, None
    return prompt_figures(ids, tokenizer, v, findings), begin


def first_episodes(begin: Begin, rows: Sequence[dict[str, Any]]) -> list[Episode]:
    """Begin the episodes of the first rows, at least one; their `prompt_ids` are what the model
    reads.
    """
    until = time.monotonic() + BUDGET
    episodes: list[Episode] = []
    with quiet(LOGGER):
        for row in rows[:EPISODES]:
            if episodes and time.monotonic() > until:
                break
            episodes += begin([row])
    return episodes


def try_environment(
    begin: Begin, row: dict[str, Any], texts: Sequence[str], findings: Findings
) -> bool:
    """Play an episode for each text, in which each turn is that text, and return whether there is
    no problem.

    A method that failed on all its calls, those of `first_episodes` included, is a problem; one
    that failed on some is a note.
    """
    until = time.monotonic() + BUDGET
    with quiet(LOGGER):
        episodes = []
        for text in texts:
            episodes += begin([row])
            play(episodes[-1], text, until)
            episodes[-1].columns()
    sound = True
    for method, count in episodes[0].rules.failures.methods.items():
        reason = count.last_error.rpartition("\n")[2]
        if count.failed == count.calls:
            sound = False
            findings.problem(
                f"environment: {method} fails on every call that was tried: {reason}", "environment"
            )
        elif count.failed:
            findings.note(
                f"environment: {method} fails on {count.failed} of {count.calls} calls that were "
                f"tried, and then the model gets the error as the answer: {reason}",
                "environment",
            )
    return sound


def play(episode: Episode, text: str, until: float) -> None:
    """Write turns with this text until the episode is over, the environment fails, or the time is
    up.
    """
    for _ in range(TURNS):
        if episode.ended or episode.world.failures or time.monotonic() > until:
            return
        episode.take_turn({"role": "assistant", "content": text}, text)
        episode.hear()
