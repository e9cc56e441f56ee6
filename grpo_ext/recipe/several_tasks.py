"""The recipe key `tasks`: several tasks in one run, each with its own rows, prompts and rewards."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_ext.common.suggestions import unknown
from grpo_ext.recipe.fields import hints_of
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.row_options import RowOptions
from grpo_ext.recipe.rule_kinds import Rule
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import Positive, convert
from grpo_ext.tasks import Task, get_task_class

Spec = dict[str, Any]  # a reward, as in `reward_funcs`

# keys of a recipe with one task; in a recipe with several, they go into the entries of `tasks`
OF_EACH_TASK = (
    "task",
    "dataset_name",
    "dataset_config",
    "dataset_train_split",
    "dataset_test_split",
    "eval_dataset_name",
    "held_out_share",
    "random_train_samples",
    "max_prompt_tokens",
    "max_answer_tokens",
    "reward_funcs",
    "reward_weights",
)


@dataclass
class TaskOptions(RowOptions):
    """Keys of an entry of `tasks` that are not fields of its task.

    Except for `share` and the default of `task`, they mean the same as in a recipe with one task.
    The keys that select rows are described in `RowOptions`.

    Args:
        task (`str`, *optional*): the name of the task; see `grpo_ext.tasks`. If `None`, it is the
            name of the entry.
        share (`float`, *optional*): the task's share of the training prompts, relative to the
            shares of the other tasks. If a task has too few rows, they are repeated. If `None`,
            each row is used once per epoch, and streams get equal shares. A recipe that sets
            `share` for some tasks only is rejected.
        reward_funcs (`list`, *optional*): the rewards of this task, with their weights. If `None`,
            they are the default rewards of the task.
        environment (`dict` or `str`, *optional*): the environment that replies to the model in rows
            of this task. If `None`, a completion is a single turn.
        dataset_name (`str`, *optional*): the dataset of the task, as a file, folder or hub id.
        dataset_config (`str`, *optional*): the configuration of the dataset.
        dataset_train_split (`str`, defaults to `"train"`): the split for training.
        dataset_test_split (`str`, defaults to `"test"`): the split for evaluation.
    """

    task: str | None = None
    share: Positive | None = None
    reward_funcs: list[str | dict[str, Any]] | None = None
    environment: dict[str, Any] | str | None = None
    dataset_name: str | None = None
    dataset_config: str | None = None
    dataset_train_split: str = "train"
    dataset_test_split: str = "test"


@dataclass(frozen=True)
class TaskOfSeveral:
    """One entry of `tasks`: the task with its fields set, and all other options of the entry."""

    task: Task
    options: TaskOptions

    @property
    def reward_specs(self) -> list[Spec]:
        """The rewards of the task as mappings with `name` and, if given, `weight` and options."""
        if self.options.reward_funcs is None:
            weights = self.task.default_rewards.items()
            return [{"name": name, "weight": weight} for name, weight in weights]
        specs = self.options.reward_funcs
        return [{"name": spec} if isinstance(spec, str) else dict(spec) for spec in specs]


def read_tasks(entries: object) -> tuple[dict[str, TaskOfSeveral], list[Problem]]:
    """Build the entries of the key `tasks`.

    Args:
        entries: the value of the key.

    Returns:
        The entries by name, and the problems: one for each fault of an entry that could not be
        built, and one if only some entries have a `share`. Both are empty if `entries` is not a
        mapping.
    """
    tasks: dict[str, TaskOfSeveral] = {}
    problems: list[Problem] = []
    if not isinstance(entries, Mapping):
        return tasks, problems
    for name, values in entries.items():
        try:
            tasks[name] = _built(name, values or {})
        except ValueError as error:
            problems += [Problem(f"tasks: {name}: {line}", "tasks") for line in error.args]
    shares = [task.options.share for task in tasks.values()]
    if None in shares and any(share is not None for share in shares):
        problems.append(
            Problem(
                "tasks: share is set for some tasks only. Set it for all tasks, or for none.",
                "tasks",
            )
        )
    return tasks, problems


def _built(name: str, values: Mapping[str, Any]) -> TaskOfSeveral:
    """Build the entry `name` from its values.

    Raises:
        ValueError: if the task or a key is unknown, or a value is invalid; `args` has one message
            per fault.
    """
    task_class: type = get_task_class(values.get("task") or name)
    hints = {**hints_of(task_class), **hints_of(TaskOptions)}
    converted: dict[str, Any] = {}
    messages: list[str] = []
    for key, value in values.items():
        try:
            if key not in hints:
                raise ValueError(unknown("key", key, hints))
            converted[key] = convert(key, value, hints[key])
        except ValueError as error:
            messages.append(str(error))
    if messages:
        raise ValueError(*messages)
    of_options = {key: value for key, value in converted.items() if key in hints_of(TaskOptions)}
    of_task = {key: value for key, value in converted.items() if key not in of_options}
    return TaskOfSeveral(task_class(**of_task), TaskOptions(**of_options))


def reward_specs(tasks: Mapping[str, TaskOfSeveral]) -> list[Spec]:
    """Return the rewards of all tasks as entries of `reward_funcs`, in order of appearance.

    Each has a key `tasks`, a list of the tasks that it scores. A reward that several tasks list
    with the same weight and options is returned once. If rewards that differ would have the same
    metric, each of them without a label gets the label `TASK_METRIC`, in which TASK is its first
    task.
    """
    specs: list[Spec] = []
    for name, entry in tasks.items():
        for spec in entry.reward_specs:
            equal = first_equal(spec, specs)
            if equal is None:
                specs.append({**spec, "tasks": [name]})
            else:
                equal["tasks"].append(name)
    counts = Counter(metric_of(spec) for spec in specs)
    for spec in specs:
        metric = metric_of(spec)
        if "label" not in spec and counts[metric] > 1:
            first_task = spec["tasks"][0]
            spec["label"] = f"{first_task}_{metric}"
    return specs


def first_equal(spec: Spec, specs: list[Spec]) -> Spec | None:
    """Return the first of `specs` that equals `spec` apart from the key `tasks`, or `None`."""
    for candidate in specs:
        if {**candidate, "tasks": None} == {**spec, "tasks": None}:
            return candidate
    return None


def metric_of(spec: str | Spec) -> str:
    """Return the name of a reward's metric: its label, or else the last part of its name.

    The parts of a name are separated by `/` or `:`; in `my_rewards.py:short`, the last is `short`.
    """
    if not isinstance(spec, str):
        return spec.get("label") or metric_of(str(spec.get("name")))
    path = spec.rstrip("/").replace(":", "/")
    return path.rpartition("/")[2]


def keys_of_a_single_task(v: Values, _: int) -> Iterator[Problem]:
    """Yield problems if `tasks` is empty, or if keys for a single task are set together with it."""
    if v.tasks is None:
        return
    if not v.tasks:
        yield Problem("tasks is empty. Add at least one task, or remove the key.", "tasks")
    for key in OF_EACH_TASK:
        if key in v and v[key] is not None:
            where = key
            if key == "reward_weights":
                where = "a `weight` for each reward"
            yield Problem(
                f"{key} cannot be set together with tasks. Set {where} in the entries of `tasks` "
                "instead.",
                key,
            )


RULES: tuple[Rule, ...] = (keys_of_a_single_task,)
