"""Evaluate models on public tasks, such as GSM8K or MMLU, with EleutherAI's lm-evaluation-harness.

The harness, an optional package, is imported only here and in `suite_model`, inside functions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import release_memory

from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.common.untrusted import first_line
from grpo_ext.evaluation.evaluate_recipe import check_models
from grpo_ext.evaluation.suite_figures import evaluation_of
from grpo_ext.evaluation.suite_model import CheckedModel, check_model, harness_model
from grpo_ext.recipe.load import Recipe

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from lm_eval.tasks.manager import TaskDict, TaskManager

HARNESS = "lm_eval"


@dataclass(frozen=True)
class Suite:
    """The tasks to evaluate with the harness, and the settings of the evaluation.

    Args:
        names: the names of tasks, groups or tags in the harness.
        folder: a folder with additional tasks as YAML files, which may name code to run.
        limit: the maximum number of documents of each task; `None` evaluates all of them.
        batch_size: the number of sequences per batch with transformers; vLLM ignores it.
        engine: `transformers`, `vllm` or `auto` (see `pick_engine`).
    """

    names: list[str]
    folder: Path | None = None
    limit: int | None = None
    batch_size: int = 8
    engine: str = "auto"


def evaluate_suite(
    recipe: Recipe, model_names: list[str], suite: Suite
) -> Iterator[dict[str, Any]]:
    """Evaluate models one after another on the tasks of a suite, and compare each with the first.

    Args:
        recipe: the recipe, which sets how models are loaded.
        model_names: the folders or hub ids of the models.
        suite: the tasks, and how to run them.

    Yields:
        After each model, the result of `evaluation_of` for all models so far, so that it can be
        saved before the next model is loaded.

    Raises:
        ValueError: if the harness is not installed, or a task or a model cannot be used.
        OSError: if a model cannot be found or loaded.
    """
    tasks = load_tasks(suite)
    check_models(model_names)
    models = [check_model(recipe, name, suite.engine) for name in model_names]
    results: dict[str, dict[str, Any]] = {}
    for index, checked in enumerate(models):
        with harness_model(recipe, checked, suite.batch_size) as model:
            results[checked.name] = run_tasks(model, tasks, suite, checked.has_template)
        del model
        # two large models may not fit into memory together
        release_memory()
        settings = settings_of(suite, results[models[0].name], models[: index + 1])
        yield evaluation_of(results, settings)


def load_tasks(suite: Suite) -> TaskDict:
    """Load the tasks and groups of a suite, with their datasets, in the form the harness expects.

    Raises:
        ValueError: if the harness is not installed, if there is no such task or folder, if a task
            cannot be loaded, or if a task runs code from completions.
    """
    if find_spec(HARNESS) is None:
        raise ValueError(
            "--suite needs the lm-evaluation-harness, which is not installed: run "
            "`pip install 'grpo_ext[suite]'`."
        )
    from lm_eval.tasks import TaskManager

    if suite.folder is not None and not suite.folder.is_dir():
        raise ValueError(
            f"--suite_tasks {suite.folder} is not a folder. Pass a folder with tasks as YAML files."
        )
    manager = TaskManager(include_path=None if suite.folder is None else str(suite.folder))
    check_names(suite.names, manager)
    try:
        loaded = manager.load(suite.names)
    except Exception as error:  # from the harness, a task's own code, `datasets` or the hub
        noun = "task" if len(suite.names) == 1 else "tasks"
        raise ValueError(
            f"the {noun} {', '.join(suite.names)} cannot be loaded ({type(error).__name__}: "
            f"{first_line(error)}). Most tasks fetch their rows from the hub when they are first "
            "used. Without a network, copy the hub's cache from another machine, or use tasks with "
            "local files, which --suite_tasks FOLDER adds."
        ) from error
    for name, task in loaded["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise ValueError(
                f"the task {name} runs the code in completions without isolation. Leave it out, or "
                "run it with lm_eval itself, in a container."
            )
    return loaded


def check_names(names: list[str], manager: TaskManager) -> None:
    """Raise `ValueError` if one of `names` is not a task, group or tag in the harness."""
    for name in names:
        if name not in manager.all_tasks:
            hint = did_you_mean(name, manager.all_tasks)
            raise ValueError(
                f"the harness has no task {name!r}.{hint} `lm_eval ls tasks` lists its tasks; "
                "--suite_tasks FOLDER adds your own."
            )


def run_tasks(model: LM, tasks: TaskDict, suite: Suite, chat_template: bool) -> dict[str, Any]:
    """Run tasks with the default seeds of the harness's command line, and return the results.

    Tasks that do not set `num_fewshot` get no few-shot examples. The global RNGs are seeded.

    Args:
        model: the model, from `harness_model`.
        tasks: the tasks, from `load_tasks`; their settings are changed in place.
        suite: the suite; only its `limit` is used.
        chat_template: whether to format prompts with the chat template, and few-shot examples as
            earlier turns.
    """
    from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
    from lm_eval.evaluator import evaluate

    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    torch.manual_seed(DEFAULT_OTHER_SEED)
    for task in tasks["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    return evaluate(
        lm=model,
        task_dict=tasks,
        limit=suite.limit,
        apply_chat_template=chat_template,
        fewshot_as_multiturn=chat_template,
    )


def settings_of(
    suite: Suite, results: dict[str, Any], models: list[CheckedModel]
) -> dict[str, Any]:
    """Return the settings and versions that the metrics depend on, to be saved with the metrics.

    Args:
        suite: the tasks that were evaluated.
        results: the harness's results for one of the models.
        models: the models; the settings name each model's engine, and say whether the model has a
            chat template.
    """
    return {
        "lm_eval": version(HARNESS),
        "suite": suite.names,
        "limit": suite.limit,
        "batch_size": suite.batch_size,
        "engine": {checked.name: checked.engine for checked in models},
        "num_fewshot": results["n-shot"],
        "task_versions": results["versions"],
        "chat_template": {checked.name: checked.has_template for checked in models},
    }
