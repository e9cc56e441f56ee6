"""Turn a recipe's `reward_funcs` into callables with weights, before a model is loaded.

    reward_funcs: [countdown, {name: format, mode: strict, weight: 0.5}, my.package:reward,
        my/reward-model]

An entry is a name, or a mapping with `name`, `weight`, `label`, `tasks` and the reward's options. A
name refers to a registered reward (possibly from a file in `reward_plugins`), to a function
(`package.module:function` or `path/file.py:function`), or to a reward model (a hub id or folder). A
reward with weight 0 is logged but not trained on. `label` changes the name of the reward's metric.
`tasks`, a list of names, restricts the reward to rows whose column `task` holds one of them.
"""

import inspect
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from grpo_ext.common.columns import ANSWERS, NESTED_ANSWERS, TASK
from grpo_ext.common.modules import load_class, load_file
from grpo_ext.common.suggestions import did_you_mean, unknown
from grpo_ext.rewards.guard import reward_name
from grpo_ext.rewards.other_signatures import imports_swift, with_trl_arguments
from grpo_ext.rewards.registry import build, list_rewards, names
from grpo_ext.rewards.reward_checks import check_call, check_rewards, metric_name
from grpo_ext.rewards.reward_columns import needed_columns
from grpo_ext.rewards.signature import EXTRAS, object_of

# Columns that TRL drops, overwrites or passes twice.
RESERVED = ("completion", "completions", *EXTRAS)
DROPPED = "completion"  # of these, the column that TRL drops
LARGEST_WEIGHT = 1e4  # its square times the square of `scores.LARGEST` is finite in float32


class WeightsError(ValueError):
    """Raised if `reward_weights` has the wrong length, or a reward has its own `weight` as well."""


def resolve_rewards(
    specs: Any, reward_weights: Sequence[float] | None = None, plugins: Iterable[str] = ()
) -> tuple[list[Any], list[float]]:
    """Return the callables (or reward-model ids) and the weights, one of each per spec.

    Args:
        specs: a spec or a list of specs. A spec is a name, a mapping `{name, weight, label, tasks,
            option: value}` or a callable.
        reward_weights: TRL's list of weights, one per spec, as an alternative to `weight` in the
            mappings. A reward without either has the weight 1.
        plugins: Python files that register rewards; they are loaded first.

    Raises:
        ValueError: if a plugin fails, there is no spec, a spec is malformed, a name or option is
            unknown, an option has an invalid value, a weight is not a number from
            -`LARGEST_WEIGHT` to `LARGEST_WEIGHT`, two rewards have the same metric name, a metric
            name has a reserved ending, or the trainer cannot call a function.
        WeightsError: if `reward_weights` does not have one weight per spec, or if a spec has a
            `weight` as well.
    """
    for path in plugins:
        load_plugin(path)
    specs = [specs] if isinstance(specs, str | Mapping) or callable(specs) else list(specs)
    if not specs:
        raise ValueError(
            f"No reward is named in `reward_funcs`. Name at least one, such as {names()[0]!r}."
        )
    rewards, weights = map(list, zip(*map(resolve, specs), strict=True))
    if reward_weights is not None:
        if any(weight is not None for weight in weights):
            raise WeightsError(
                "Weights are set both in `reward_weights` and as the `weight` of a reward. Keep "
                "one of the two."
            )
        if len(reward_weights) != len(rewards):
            raise WeightsError(
                f"The number of reward_weights ({len(reward_weights)}) does not match the number "
                f"of rewards ({len(rewards)}). Set one weight for each reward."
            )
        weights = list(reward_weights)
    check_rewards(rewards, specs)
    labels = [metric_name(reward) for reward in rewards]
    return rewards, [
        checked_weight(label, 1.0 if w is None else w)
        for label, w in zip(labels, weights, strict=True)
    ]


def resolve(spec: Any) -> tuple[Any, Any]:
    """Return a spec's callable or reward-model id, and its weight (`None` if it has none).

    Raises:
        ValueError: if the spec is malformed, names no reward, or has invalid options.
    """
    if isinstance(spec, str):
        return find(spec, {}), None
    if not isinstance(spec, Mapping):
        if callable(spec):
            return spec, None
        raise ValueError(
            f"A reward must be a name, a mapping with `name`, or a function; got {spec!r}."
        )
    options = dict(spec)
    name = options.pop("name", None)
    weight = options.pop("weight", None)
    label = options.pop("label", None)
    tasks = options.pop("tasks", None)
    if not isinstance(name, str):
        hint = "".join(did_you_mean(key, ["name"]) for key in options)
        raise ValueError(
            f"A reward needs a `name`, which must be a string; got {dict(spec)!r}.{hint}"
        )
    reward = find(name, options)
    if label is not None:
        if not isinstance(label, str):
            raise ValueError(f"The label of reward {name!r} must be a string; got {label!r}.")
        if isinstance(reward, str):
            raise ValueError(
                f"The reward model {name!r} cannot have a label, because its metric is named "
                "after the model. Remove `label`."
            )
        reward.name = reward.__name__ = label
    if tasks is not None:
        tasks = [tasks] if isinstance(tasks, str) else tasks
        if not (isinstance(tasks, list) and tasks and all(isinstance(t, str) for t in tasks)):
            raise ValueError(
                f"The tasks of reward {name!r} must be a non-empty list of names; got {tasks!r}."
            )
        if isinstance(reward, str):
            raise ValueError(
                f"The reward model {name!r} cannot have `tasks`, because a reward model scores all "
                "rows. Remove `tasks`, or use a reward function instead."
            )
        reward.tasks = tuple(tasks)
    return reward, weight


def find(name: str, options: dict[str, Any]) -> Any:
    """Resolve the name of a reward to a callable with `options` applied, or to a reward-model id.

    Args:
        name: a registered name, `package.module:function`, `file.py:function`, or the hub id or
            folder of a reward model.
        options: the reward's options. A reward model has none.

    Raises:
        ValueError: if there is no such reward, or it does not accept the options.
    """
    if name in names():
        return build(name, **options)
    if ":" in name and not Path(name).exists():
        return dotted(name, options)
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) or Path(name).is_dir():
        if options:
            raise ValueError(
                f"The reward model {name!r} takes no options. Remove {', '.join(options)}."
            )
        return name
    if "/" in name:
        raise ValueError(
            f"Reward {name!r} is neither a folder nor the hub id (OWNER/NAME) of a reward model. "
            "For a function in a file, use FILE.py:FUNCTION."
        )
    return build(name, **options)  # raises `ValueError`, with the closest known name


def dotted(name: str, options: dict[str, Any]) -> Callable:
    """Load the function `package.module:function` or `file.py:function`, with `options` applied.

    The name may also refer to an object with `__call__`, or to a class of such objects whose
    constructor needs no arguments. A function that is not registered gets TRL's arguments
    unchanged, unless it was written for ms-swift or verl (see `other_signatures`).

    Raises:
        ValueError: if there is no such function, or it does not accept the options.
    """
    try:
        loaded = load_class("reward", name, {})
    except ValueError as error:
        if imports_swift(error.__cause__):
            raise ValueError(
                f"Reward {name!r} imports ms-swift, which is not installed. In the file, replace "
                "the import with these lines: `class ORM:`, `    def __init__(self, "
                "args=None): self.args = args`, `orms = {}`."
            ) from error
        raise
    if not callable(loaded):
        raise ValueError(
            f"Reward {name!r} is neither a function nor an object with __call__; its type is "
            f"{type(loaded).__name__}. Name the function that scores completions."
        )
    for info in list_rewards():
        if info.registered is loaded:
            return build(info.name, **options)
    try:
        function = with_trl_arguments(object_of(loaded), options)
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"Reward {name!r}: {error}") from None
    known = [p.name for p in parameters]
    for option in options:
        if option not in known and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise ValueError(f"Reward {name!r}: {unknown('option', option, known)}")
    bound: Any = WithOptions(function, **options)
    bound.name = bound.__name__ = reward_name(function)
    return bound


class WithOptions(partial):
    """A function with options, which take precedence over columns of the same name."""

    def __call__(self, /, *args: Any, **columns: Any) -> Any:
        return self.func(*args, **{**columns, **self.keywords})


def load_plugin(path: str) -> None:
    """Import a plugin file, unless this process has already imported it.

    Raises:
        ValueError: if there is no such file, or it raises an error.
    """
    try:
        load_file(path)
    except Exception as error:
        raise ValueError(
            f"The reward plugin {path} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def checked_weight(name: str, weight: Any) -> float:
    """Return the weight of the reward `name` as a float.

    Raises:
        ValueError: if it is not a number from -`LARGEST_WEIGHT` to `LARGEST_WEIGHT`.
    """
    known: Any = (
        weight
        if isinstance(weight, numbers.Real) and not isinstance(weight, bool)
        else float("nan")
    )
    if not abs(known) <= LARGEST_WEIGHT:
        raise ValueError(
            f"The weight of reward {name!r} is {weight!r}, but must be a finite number from "
            f"-{LARGEST_WEIGHT:g} to {LARGEST_WEIGHT:g}."
        )
    return float(weight)


def renaming(column: str, there: Sequence[str]) -> str:
    """Return advice for a missing column: rename one of the columns `there`, or add the column."""
    answers = [name for name in ANSWERS if name in there]
    answers += [path for path in NESTED_ANSWERS if path.partition(".")[0] in there]
    if column in ANSWERS and answers:
        return (
            f" With `task: prompts`, set rename_columns: {{{column}: {answers[0]}}}. Otherwise, "
            f"add a column {column} to the data."
        )
    return (
        f"{did_you_mean(column, there)} With `task: prompts`, set rename_columns: "
        f"{{{column}: COLUMN}}. Otherwise, add a column {column} to the data."
    )


def check_columns(rewards: Sequence[Any], dataset_columns: Iterable[str] | None) -> None:
    """Check that a dataset has the columns that rewards require, and none that they do not accept.

    If the columns are unknown (`None`), nothing is checked.

    Raises:
        ValueError: if a column that a reward requires is missing or is not passed by the trainer, a
            reward does not accept a column that is passed, a reward has `tasks` and there is no
            column `task`, or a column has a reserved name.
    """
    if dataset_columns is None:
        return
    there = list(dataset_columns)
    for name in there:
        if name in RESERVED and name != DROPPED:
            raise ValueError(
                f"The dataset has a column {name!r}, but the trainer passes a different value to "
                "rewards under this name. Rename the column in the data, or drop it."
            )
    for reward in rewards:
        name = metric_name(reward)
        if getattr(reward, "tasks", None) and TASK not in there:
            raise ValueError(
                f"Reward {name!r} has `tasks` ({', '.join(reward.tasks)}), but the dataset has no "
                f"column {TASK!r} with the task of each row. Add the column, or remove `tasks` "
                "from this reward."
            )
        for column in needed_columns(reward):
            if column == "prompt":
                raise ValueError(
                    f"Reward {name!r} has a parameter `prompt`, but the trainer passes the prompts "
                    "as `prompts`. Rename the parameter to `prompts`."
                )
            if column == DROPPED and column in there:
                raise ValueError(
                    f"Reward {name!r} reads the column {column!r}, which the trainer does not pass "
                    "to rewards. With `task: prompts`, set rename_columns: {reference: completion} "
                    "and read `reference`. Otherwise, rename the column in the data."
                )
            if column not in there:
                raise ValueError(
                    f"Reward {name!r} reads the column {column!r}, which the dataset lacks. Its "
                    f"columns: {', '.join(there)}.{renaming(column, there)}"
                )
        check_call(reward, [column for column in there if column not in ("prompt", DROPPED)])
