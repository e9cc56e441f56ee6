"""The keys that say which rows of the data a run trains on, and which ones it is evaluated on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.values import Count


@dataclass
class RowOptions:
    """Which rows of a task are used: keys of a recipe with one task, and of each entry of `tasks`.

    They apply in this order: the task's own filter, `max_prompt_tokens` and `max_answer_tokens`, and
    last `max_train_samples` or `max_eval_samples`.

    Args:
        eval_dataset_name (`str`, *optional*): held-out rows, as a file or hub id. `None`: `dataset_test_split` of
            `dataset_name`, or the held-out rows of the task.
        max_prompt_tokens (`int`, *optional*): use only rows whose prompt has at most so many tokens, for training and for
            evaluation. The tokens are those that the model reads, with chat template. `None`: all rows.
        max_answer_tokens (`int`, *optional*): use only rows whose reference answer, such as the worked solution in GSM8K, has
            at most so many tokens. Tasks without a reference answer refuse it. `None`: all rows.
        max_train_samples, max_eval_samples (`int`, *optional*): use only the first so many of the remaining rows.
    """

    eval_dataset_name: str | None = None
    max_prompt_tokens: Count | None = None
    max_answer_tokens: Count | None = None
    max_train_samples: Count | None = None
    max_eval_samples: Count | None = None


def options_by_task(v: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the row options that are set, by task: entries of `tasks` by name, or those of the recipe under ""."""
    if v["tasks"] is None:
        return {"": v}
    return {name: entry or {} for name, entry in v["tasks"].items()}


def row_rules(v: Mapping[str, Any], _: int) -> Iterator[Problem]:
    """Prompts can be counted before the run."""
    for name, options in options_by_task(v).items():
        where = f"tasks: {name}: " if name else ""
        if options.get("max_prompt_tokens") and v["environment"] is not None:
            yield Problem(
                f"{where}max_prompt_tokens counts the task's prompts, which environment completes when an episode "
                "begins. Remove max_prompt_tokens.",
                "tasks" if name else "max_prompt_tokens",
            )
