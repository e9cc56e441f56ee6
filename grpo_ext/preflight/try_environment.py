"""Try a recipe's environments: check their first prompts, and play made-up turns."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from grpo_ext.common.columns import ENVIRONMENT
from grpo_ext.common.quiet import quiet
from grpo_ext.common.run_time import duration
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import episode_rules
from grpo_ext.environments.played_episodes import seconds_alone
from grpo_ext.environments.start_episodes import Begin, beginning
from grpo_ext.environments.tools import ToolEnvironment
from grpo_ext.environments.turn_tokens import trained_turns
from grpo_ext.evaluation.completions import end_tokens
from grpo_ext.preflight.episode_lengths import check_episode_lengths
from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.tokenized_prompts import (
    check_tokenized_prompts,
    local_options,
    prompt_figures,
)
from grpo_ext.preflight.try_rewards import three_completions
from grpo_ext.recipe.episode_options import environments_of
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards.scores import in_full

MOST_ENVIRONMENTS = 32  # maximum number of environments that are tried
MAX_EPISODES = 32  # maximum number of episodes that are begun to check their prompts
MAX_TURNS = 3  # maximum number of turns tried per episode
SLOW = 0.2  # minimum seconds per reply for a note that episodes wait for each other
BUDGET = 4.0  # seconds after which no further episode or turn is started
LOGGER = "grpo_ext.environments.failures"  # its warnings become findings
KEY = "environment"
KEYS = (KEY, "environments", "tasks")  # where a recipe names environments


def begin_episodes(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, findings: Findings
) -> Begin | None:
    """Create a recipe's environments, and return the function that starts episodes for rows.

    Args:
        recipe: the recipe that sets the environments.
        tokenizer: the model's tokenizer.
        findings: receives a problem if an environment cannot be created, and a note if a class with
            a method `step` is used as a set of tools.

    Returns:
        The function. It is `None` if the recipe has no environment or no `max_completion_length`,
        if `findings` already contains a problem with the environments, or if an environment cannot
        be created.
    """
    v = recipe.flat
    environments = environments_of(v)
    if not environments or v["max_completion_length"] is None:
        return None
    if any(findings.has_problem(key) for key in KEYS):
        return None
    config = GenerationConfig()
    with suppress(OSError):  # the model has no generation config
        config = GenerationConfig.from_pretrained(v["model_name_or_path"], **local_options(v))
    try:
        for name, environment in environments.items():
            probe = episode_rules(environment).probe
            if isinstance(probe, ToolEnvironment) and hasattr(probe.instance, "step"):
                findings.note(
                    f"environment{named(name)}: the class is not a subclass of "
                    "grpo_ext.Environment, so its method `step` is a tool that the model calls. "
                    "Make it a subclass if `step` should answer the model's turns.",
                    KEY,
                )
        return beginning(environments, tokenizer, end_tokens(tokenizer, config), recipe.training)
    except ValueError as error:
        findings.problem(error, KEY)
    except Exception as error:  # whatever a user's class raises
        findings.problem(f"environment: {in_full(error).splitlines()[-1]}", KEY)
    return None


def read_prompts(
    recipe: Recipe, rows: list[Row], tokenizer: PreTrainedTokenizerBase, findings: Findings
) -> tuple[dict[str, Any] | None, Begin | None]:
    """Check the prompts as the model sees them.

    If the recipe has an environment and episodes can be started, these are the prompts of episodes,
    which describe the tools and end with the text returned by `reset`. In this case,
    `findings.figures["turns"]` records which tokens are trained on.

    Args:
        recipe: the recipe that sets the environments.
        rows: the rows, with their prompts. With episodes, only the rows that `first_episodes` uses
            are checked.
        tokenizer: the model's tokenizer.
        findings: receives the problems, notes and figures.

    Returns:
        A pair: the result of `prompt_figures`, or `None` if the prompts cannot be built; and the
        function that starts episodes for rows, or `None` if the recipe has no environment or no
        episode can be started.
    """
    begin = begin_episodes(recipe, tokenizer, findings)
    if begin is None:
        prompts = [row["prompt"] for row in rows]
        return check_tokenized_prompts(prompts, tokenizer, recipe.flat, findings), None
    try:
        ids = [episode.prompt_ids for episode in first_episodes(begin, rows)]
    except Exception as error:  # a row without a conversation, or whatever a template raises
        findings.problem(
            "environment: the prompt of an episode cannot be built: "
            f"{type(error).__name__}: {error}",
            KEY,
        )
        return None, None
    findings.figures["turns"] = trained_turns(tokenizer.chat_template)
    return prompt_figures(ids, tokenizer, recipe.flat, findings), begin


def first_episodes(begin: Begin, rows: Sequence[Row]) -> list[Episode]:
    """Begin an episode for each of the first `MAX_EPISODES` rows, and return the episodes.

    At least one episode is begun, and no further one after `BUDGET` seconds.
    """
    until = time.monotonic() + BUDGET
    episodes: list[Episode] = []
    with quiet(LOGGER):
        for row in rows[:MAX_EPISODES]:
            if episodes and time.monotonic() > until:
                break
            episodes += begin([row])
    return episodes


def named(name: str) -> str:
    """Return an environment's name, preceded by a space, or an empty string if it has no name."""
    return f" {name}" if name else ""


def try_environments(
    begin: Begin, rows: Sequence[Row], prefilled: bool, findings: Findings
) -> bool:
    """Try each of up to `MOST_ENVIRONMENTS` environments on its first row.

    Args:
        begin: the function that starts the episodes.
        rows: the first rows; at least one.
        prefilled: whether the prompt opens the think tag.
        findings: receives the problems and notes.

    Returns:
        `True` unless a method of an environment failed on all its calls.
    """
    first_rows: dict[str, Row] = {}
    for row in rows:
        first_rows.setdefault(str(row.get(ENVIRONMENT)), row)
        if len(first_rows) == MOST_ENVIRONMENTS:
            break
    is_sound = True
    for row in first_rows.values():
        texts = list(three_completions(row, prefilled).values())
        is_sound = try_environment(begin, row, texts, findings) and is_sound
    return is_sound


def try_environment(begin: Begin, row: Row, texts: Sequence[str], findings: Findings) -> bool:
    """Play an episode for each string in `texts`, with this string as every turn of the model.

    Add a problem to `findings` if a method failed on all its calls, counting those that
    `first_episodes` made. Add a note if a method failed on only some calls, or if replies are slow
    and come one at a time. `check_episode_lengths` checks the lengths of the answers.

    Args:
        begin: the function that starts the episodes.
        row: the row that each episode begins with.
        texts: the text of the model's turns, for each episode; at least one.
        findings: receives the problems and notes.

    Returns:
        `True` unless a method failed on all its calls.
    """
    until = time.monotonic() + BUDGET
    answers = Answers()
    with quiet(LOGGER):
        for text in texts:
            [episode] = begin([row])
            room = episode.room
            play(episode, text, until, answers)
            episode.columns()
    check_episode_lengths(episode, room, answers.tokens, findings)
    seconds = answers.seconds
    name = named(episode.rules.label)
    # The fastest reply is compared, because the first call may import something.
    if seconds and min(seconds) >= SLOW and not episode.world.in_background:
        findings.note(
            f"environment{name}: its reply to a turn takes {duration(min(seconds))}, and the "
            "episodes of a generation wait for their replies one at a time. Make `step` and tools "
            "async, or, if its instances share no state, add `threads: 16` to the environment's "
            f"mapping, as in {{name: {episode.rules.name}, threads: 16}}.",
            KEY,
        )
    is_sound = True
    for method, calls in episode.rules.failures.methods.items():
        reason = calls.last_error.rpartition("\n")[2]
        if calls.failed == calls.calls:
            is_sound = False
            findings.problem(
                f"environment{name}: {method} fails on every call that was tried: {reason}. "
                f"{episode.rules.failures.advice[method]}",
                KEY,
            )
        elif calls.failed:
            findings.note(
                f"environment{name}: some calls of {method} fail in trial episodes with made-up "
                f"turns ({calls.failed} of {calls.calls} that were tried): {reason}. "
                f"{episode.rules.failures.advice[method]}",
                KEY,
            )
    return is_sound


@dataclass(frozen=True)
class Answers:
    """Measurements of an environment's answers to made-up turns."""

    seconds: list[float] = field(default_factory=list)  #: seconds of each reply that did not fail
    tokens: list[int] = field(default_factory=list)  #: tokens of each answer, with the template


def play(episode: Episode, text: str, until: float, answers: Answers) -> None:
    """Play up to `MAX_TURNS` turns; stop early if the episode ends or fails, or at time `until`.

    The length of the episode is not limited, so that answers are not cut off.

    Args:
        episode: an episode that has begun; it is changed in place.
        text: the text of each of the model's turns.
        until: the value of `time.monotonic()` at which to stop.
        answers: receives the seconds and tokens of each answer.
    """
    episode.limit(sys.maxsize)
    for _ in range(MAX_TURNS):
        if episode.ended or episode.world.failures or time.monotonic() > until:
            break
        seconds_alone([episode])
        episode.take_turn({"role": "assistant", "content": text}, text)
        episode.hear()
        if episode.pending:
            answers.tokens.append(len(episode.pending))
            episode.pending.clear()
        if not episode.world.failures:
            answers.seconds.append(seconds_alone([episode]))
