"""The keys that select training rows and evaluation rows, and their rules."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from grpo_ext.recipe.episode_options import environments_of, environments_of_tasks
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import Rule
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import Count

OpenShare = Annotated[float, Field(gt=0, lt=1)]


@dataclass
class RowOptions:
    """Recipe keys that select the rows of a task.

    In a recipe with one task, they are top-level keys; with `tasks`, each entry has its own. Rows
    are filtered in this order: by the task itself, by `held_out_share`, by `max_prompt_tokens` and
    `max_answer_tokens`, and finally by `max_train_samples` or `max_eval_samples`.

    Args:
        eval_dataset_name (`str`, *optional*): the dataset to evaluate on, as a file or hub id. If
            `None`, evaluation uses the rows held out by `held_out_share` if it is set, otherwise
            the `dataset_test_split` of `dataset_name`, or, for a task that generates its rows, the
            held-out rows that it generates.
        held_out_share (`float`, *optional*): the share of the rows in `dataset_train_split` that is
            held out for evaluation and never trained on. A hash of the row's question selects the
            rows, so the same rows are held out in every run, even after rows are added or
            reordered. If `None`, no training rows are held out.
        max_prompt_tokens (`int`, *optional*): use only rows whose prompt has at most this many
            tokens, in training and in evaluation. The tokens of the chat template count. If `None`,
            prompts of any length are used.
        max_answer_tokens (`int`, *optional*): use only rows whose reference answer, such as the
            worked solution in GSM8K, has at most this many tokens. This key cannot be set for tasks
            without a reference answer. If `None`, answers of any length are used.
        max_train_samples, max_eval_samples (`int`, *optional*): use at most this many of the
            remaining rows, from the first row on. If `None`, all of them are used.
        random_train_samples (`bool`, defaults to `False`): whether to draw the `max_train_samples`
            rows at random, using `seed`, instead of taking the first ones.
    """

    eval_dataset_name: str | None = None
    held_out_share: OpenShare | None = None
    max_prompt_tokens: Count | None = None
    max_answer_tokens: Count | None = None
    max_train_samples: Count | None = None
    max_eval_samples: Count | None = None
    random_train_samples: bool = False


def options_by_task(v: Values) -> dict[str, Mapping[str, Any]]:
    """Return the options of each task, by the name of its entry in `tasks`.

    For a recipe without `tasks`, the result is `{"": v}`.
    """
    if v.tasks is None:
        return {"": v}
    return {name: entry or {} for name, entry in v.tasks.items()}


def row_options_that_conflict(v: Values, _: int) -> Iterator[Problem]:
    """Yield problems for row options that need another option, or conflict with one.

    They may conflict with each other, with `dataset_streaming` or with environments, or with the
    `held_out_share` of another entry of `tasks`.
    """
    of_tasks = environments_of_tasks(v.tasks)
    for name, options in options_by_task(v).items():
        completed = name in of_tasks or (not of_tasks and bool(environments_of(v)))
        for problem in option_problems(options, v, completed):
            if name:
                yield Problem(f"tasks: {name}: {problem.message}", "tasks")
            else:
                yield problem
    if v.tasks is not None:
        yield from share_problems(v.tasks)


def share_problems(entries: Mapping[str, Mapping[str, Any] | None]) -> Iterator[Problem]:
    """Yield a problem if two entries of `tasks` hold out different rows of the same data.

    These are entries with the same dataset, configuration and training split, but with different
    values of `held_out_share`. `entries` maps the name of each entry to its options, or to `None`
    if it has none.
    """
    first: dict[tuple[Any, ...], tuple[str, float | None]] = {}
    for name, entry in entries.items():
        options = entry or {}
        if not options.get("dataset_name"):
            continue
        split = options.get("dataset_train_split", "train")
        source = (options["dataset_name"], options.get("dataset_config"), split)
        share = options.get("held_out_share")
        other, other_share = first.setdefault(source, (name, share))
        if share != other_share:
            yield Problem(
                f"tasks that read the same dataset need the same held_out_share: {other} and "
                f"{name} read {source[0]}, so one would train on rows that the other holds out. "
                "Set the same held_out_share in both entries.",
                "tasks",
            )


def option_problems(options: Mapping[str, Any], v: Values, completed: bool) -> Iterator[Problem]:
    """Yield the problems of one task's row options.

    Args:
        options: the options of the task; in a recipe without `tasks`, the values of the recipe.
        v: the values of the recipe.
        completed: whether the task has an environment, which may extend its prompts.
    """
    if options.get("max_prompt_tokens") and completed:
        yield Problem(
            "max_prompt_tokens cannot be combined with environments: `reset` may extend the "
            "prompt, so its length is unknown before an episode begins. Remove max_prompt_tokens.",
            "max_prompt_tokens",
        )
    if options.get("held_out_share"):
        # an environment may provide rows without any held-out ones
        brings_rows = options.get("task") == "environment"
        if not options.get("dataset_name") and not brings_rows:
            yield Problem(
                "held_out_share needs dataset_name. Set dataset_name, or remove held_out_share: a "
                "task that generates its rows also generates held-out rows.",
                "held_out_share",
            )
        for key in ("eval_dataset_name", "dataset_test_split"):
            if options.get(key):
                yield Problem(
                    f"held_out_share and {key} both say which rows are held out. Remove one of "
                    "the two keys.",
                    "held_out_share",
                )
        if v.dataset_streaming and v.eval_strategy != "no" and not options.get("max_eval_samples"):
            yield Problem(
                "held_out_share: without max_eval_samples, the whole stream would be read to "
                "find the held-out rows. Set max_eval_samples.",
                "held_out_share",
            )
    if options.get("random_train_samples"):
        if not options.get("max_train_samples"):
            yield Problem(
                "random_train_samples needs max_train_samples, the number of rows to draw. Set "
                "max_train_samples, or remove random_train_samples.",
                "random_train_samples",
            )
        if v.dataset_streaming:
            yield Problem(
                "random_train_samples draws from all rows, but dataset_streaming reads them one "
                "after another. Remove one of the two keys.",
                "random_train_samples",
            )


RULES: tuple[Rule, ...] = (row_options_that_conflict,)
