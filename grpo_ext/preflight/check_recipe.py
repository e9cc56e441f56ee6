"""Load a recipe and run all its checks, for the command `check`."""

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
    """Run all checks of a recipe, and return what they found.

    No check needs a GPU, and the model is loaded only if `num_samples` is above 0. If individual
    values of the recipe are invalid, nothing else is checked.

    Args:
        path: the recipe's file, as for `load_recipe`.
        overrides: values that replace the file's, as for `load_recipe`.
        num_processes: number of training processes; `None`: as in the accelerate config.
        elsewhere: whether the run will be on another machine. The packages, vLLM server and disk of
            this machine are then not checked, and data that cannot be reached is only noted.
        num_samples: number of completions that the model samples to try the rewards on.

    Raises:
        FileNotFoundError: if the file does not exist or is a folder.
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
