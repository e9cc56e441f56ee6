"""The keys that select training rows and evaluation rows."""

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
    """Keys that select the rows of a task: for the only task, or in each entry of `tasks`.

    They apply in this order: the task's own filter, `held_out_share`, `max_prompt_tokens` and
    `max_answer_tokens`, and finally `max_train_samples` or `max_eval_samples`.

    Args:
        eval_dataset_name (`str`, *optional*): held-out rows, as a file or hub id. `None`: the rows
            of `held_out_share`, else `dataset_test_split` of `dataset_name`, or the held-out rows
            of the task.
        held_out_share (`float`, *optional*): the share of the rows in `dataset_train_split` that is
            held out for evaluation and never trained on. A hash of the row's question decides, so
            the same rows are held out in every run, even after rows are added or reordered. `None`:
            none.
        max_prompt_tokens (`int`, *optional*): use only rows whose prompt has at most this many
            tokens, for training and for evaluation. Tokens are counted as the model reads them,
            including the chat template. `None`: all rows.
        max_answer_tokens (`int`, *optional*): use only rows whose reference answer, such as the
            worked solution in GSM8K, has at most this many tokens. Tasks without a reference answer
            refuse this key. `None`: all rows.
        max_train_samples, max_eval_samples (`int`, *optional*): use at most this many of the
            remaining rows, from the beginning. `None`: all rows.
        random_train_samples (`bool`, defaults to `False`): choose the `max_train_samples` rows at
            random, by `seed`.
    """

    eval_dataset_name: str | None = None
    held_out_share: OpenShare | None = None
    max_prompt_tokens: Count | None = None
    max_answer_tokens: Count | None = None
    max_train_samples: Count | None = None
    max_eval_samples: Count | None = None
    random_train_samples: bool = False


def options_by_task(v: Values) -> dict[str, Mapping[str, Any]]:
    """Return the row options of each task, by the name of its entry in `tasks`.

    In a recipe without `tasks`, return its own values under the name "".
    """
    if v.tasks is None:
        return {"": v}
    return {name: entry or {} for name, entry in v.tasks.items()}


def row_options_that_conflict(v: Values, _: int) -> Iterator[Problem]:
    """Row options must not contradict each other, and must suit streaming if it is on."""
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
    """Yield a problem if entries of `tasks` hold out different rows of one split of a dataset.

    `entries` maps the name of each entry to its options.
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
                f"{name} read {source[0]}, so one would train on rows that the other holds out.",
                "tasks",
            )


def option_problems(options: Mapping[str, Any], v: Values, completed: bool) -> Iterator[Problem]:
    """Yield the problems of one task's row options.

    Args:
        options: the options of the task.
        v: the values of the recipe.
        completed: whether an environment may complete the prompts of the task.
    """
    if options.get("max_prompt_tokens") and completed:
        yield Problem(
            "max_prompt_tokens cannot be combined with environments, which complete the prompts "
            "only when an episode begins. Remove max_prompt_tokens.",
            "max_prompt_tokens",
        )
    if options.get("held_out_share"):
        # rows that come with an environment may have no held-out ones
        brings_rows = options.get("task") == "environment"
        if not options.get("dataset_name") and not brings_rows:
            yield Problem(
                "held_out_share needs dataset_name. Write dataset_name, or remove held_out_share: "
                "a task that makes its own rows also makes held-out rows.",
                "held_out_share",
            )
        for key in ("eval_dataset_name", "dataset_test_split"):
            if options.get(key):
                yield Problem(
                    f"held_out_share and {key} both say which rows are held out. Remove one of "
                    "them.",
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
                "random_train_samples needs max_train_samples, the number of rows to draw.",
                "random_train_samples",
            )
        if v.dataset_streaming:
            yield Problem(
                "random_train_samples draws from all rows, but dataset_streaming reads them one "
                "after another. Remove one of them.",
                "random_train_samples",
            )


RULES: tuple[Rule, ...] = (row_options_that_conflict,)
