"""Check a translated recipe without running the Python files that it names."""

from __future__ import annotations

from grpo_ext.migrate.draft import Draft
from grpo_ext.recipe.folder import accelerate_settings
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import Problem, RecipeError

# keys whose values may name Python files, which loading a recipe runs
NAME_CODE = ("environment", "reward_plugins", "task", "tasks")


def problems_of(draft: Draft, processes: int) -> list[Problem]:
    """Return the problems of a translated recipe, except for keys that must be set by hand.

    The keys in `NAME_CODE` are not checked, so that a file of another project cannot run code.

    Args:
        draft: the translated recipe.
        processes: the number of training processes.
    """
    values = {key: value for key, value in draft.values.items() if key not in NAME_CODE}
    try:
        load_recipe(None, {**values, "task": "prompts"}, processes)
    except RecipeError as error:
        return [problem for problem in error.problems if problem.key not in draft.missing]
    return []


def processes_by_default(draft: Draft) -> int:
    """Return how many processes train the recipe if `--num_processes` is not given.

    This is `num_processes` in the recipe's accelerate config. It is 1 if there is no config, or if
    the config is invalid or does not set `num_processes`.
    """
    config = draft.values.get("accelerate_config")
    if config is None:
        return 1
    try:
        return accelerate_settings(config).get("num_processes") or 1
    except (OSError, ValueError):  # loading the recipe reports it
        return 1
