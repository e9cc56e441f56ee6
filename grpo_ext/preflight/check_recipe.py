"""Load a recipe and run all its checks, for the command `grpo-ext check`."""

from pathlib import Path

from grpo_ext.common.modules import without_collector
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import Findings, RecipeError
from grpo_ext.recipe.read import Overrides


def check_recipe(
    path: str | Path | None,
    overrides: Overrides = None,
    num_processes: int | None = None,
    elsewhere: bool = False,
    num_samples: int = 0,
) -> Findings:
    """Run all checks on a recipe, and return the problems, notes and figures that they find.

    No check needs a GPU, and the model is loaded only if `num_samples` is above 0. If individual
    values of the recipe are invalid, nothing else is checked.

    Args:
        path: the file or the name of the recipe; `None` if `overrides` contains all values.
        overrides: values that replace those in the file: a mapping, or command-line arguments.
        num_processes: the number of training processes; `None` uses the number in the recipe's
            accelerate config.
        elsewhere: whether the run will be on another machine. The packages, vLLM server and disk of
            this machine are then not checked, and data that cannot be reached is only noted.
        num_samples: the number of completions to sample from the model to try the rewards on, which
            is rounded up to whole groups.

    Raises:
        FileNotFoundError: if the recipe does not exist or is a folder.
        OSError: if the file cannot be opened, or if the model's folder cannot be listed or has too
            many entries.
    """
    findings = Findings(elsewhere=elsewhere)
    try:
        recipe = load_recipe(path, overrides, num_processes)
    except RecipeError as error:
        findings.problems += error.problems
        if error.recipe is None:
            findings.note(
                "nothing else was checked. Correct the problems, and run `grpo-ext check` again."
            )
            return findings
        recipe = error.recipe
    with without_collector():
        from grpo_ext.preflight.loaded_recipe import check_loaded

    check_loaded(recipe, findings, num_processes, num_samples)
    return findings
