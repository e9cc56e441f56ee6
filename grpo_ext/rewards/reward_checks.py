"""Check rewards before a model is loaded, for recipes and for trainers created in Python."""

import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from grpo_ext.rewards.guard import is_reward_model, reward_name, takes_guard, unguarded
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.reward_columns import parameters_of

# The arguments that TRL's trainer passes by name to every reward function, in addition to the
# dataset columns.
PASSED = (
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
)
# Endings of the metrics that an evaluation logs in addition to a reward's mean.
TAKEN_ENDINGS = ("_se", "_problems", "_constant")


def unique_names(rewards: Sequence[Any]) -> list[str]:
    """Return a metric name for each reward; repeated names get numbers: `a`, `a_2`, `a_3`.

    Reward models and `Guard`s keep their names.
    """
    names = [metric_name(reward) for reward in rewards]
    taken = {name for name, reward in zip(names, rewards, strict=True) if not takes_guard(reward)}
    unique = []
    for name, reward in zip(names, rewards, strict=True):
        if takes_guard(reward):
            number = 1
            label = name
            while label in taken or (number > 1 and label in names):
                number += 1
                label = f"{name}_{number}"
            taken.add(label)
            name = label
        unique.append(name)
    return unique


def check_rewards(
    rewards: Sequence[Any], specs: Sequence[Any] = (), names: Sequence[str] | None = None
) -> None:
    """Check that rewards have distinct names and that the trainer can call them.

    Args:
        rewards: functions, reward models, ids of reward models, or `Guard`s.
        specs: the entries of a recipe's `reward_funcs`, one per reward, for the advice in the
            message.
        names: the names of the rewards' metrics. If it is `None`, each reward's own name is used.

    Raises:
        ValueError: if two rewards have the same name, a name has one of the `TAKEN_ENDINGS`, or the
            trainer cannot call one of the rewards. The message says how to fix this.
    """
    labels = [metric_name(reward) for reward in rewards] if names is None else list(names)
    for label, count in Counter(labels).items():
        if count > 1:
            position = len(labels) - 1 - labels[::-1].index(label)
            spec = specs[position] if specs else None
            raise ValueError(
                f"{count} rewards are called {label!r} and would share one metric. "
                f"{rename_advice(label, spec, rewards[position])}"
            )
        if label.endswith(TAKEN_ENDINGS):
            raise ValueError(
                f"Reward {label!r} has a name that ends like the metrics that an evaluation adds "
                f"to each reward ({', '.join(TAKEN_ENDINGS)}), so reports would leave it out. "
                "Rename the reward, or set another `label` for it in `reward_funcs`."
            )
    for reward in rewards:
        check_call(reward)


def rename_advice(label: str, spec: Any, reward: Any) -> str:
    """Return advice on how to rename one of several rewards with the same name.

    Args:
        label: the name that they share.
        spec: the reward's entry in `reward_funcs`; `None` if it is unknown.
        reward: the reward.
    """
    if isinstance(reward, str) or is_loaded_model(reward):
        return (
            "A reward model is named after the last part of its folder or hub id. Use a folder "
            "with another name, or load the model and set model.config._name_or_path."
        )
    name = spec.get("name") if isinstance(spec, dict) else spec
    if isinstance(name, str):
        return (
            "Give all but one of them a different label, as in "
            f"{{name: {name}, label: {label_for(label)}}}."
        )
    return (
        "Give each a different name: rename functions that are written with `def`, and set "
        "`__name__` on a lambda, a partial or an object."
    )


def label_for(label: str) -> str:
    """Return a metric name to suggest instead of `label`, which is taken."""
    return f"{label.strip('<>')}_2"


def check_call(reward: Any, columns: Iterable[str] = ()) -> None:
    """Check that the trainer can pass its arguments and `columns` to a reward by name.

    Registered rewards always pass this check, because they get only the arguments that they name.
    Reward models and functions whose parameters Python cannot determine pass it as well.

    Raises:
        ValueError: if the reward does not accept one of these arguments, has positional-only
            parameters, or is a class.
    """
    function = unguarded(reward)
    if isinstance(function, Reward) or is_reward_model(function):
        return
    name = reward_name(function)
    if inspect.isclass(function):
        raise ValueError(f"Reward {name!r} is a class. Pass an instance of it: {name}(...).")
    parameters = parameters_of(function)
    if parameters is None:
        return
    by_position = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    if by_position:
        raise ValueError(
            f"Reward {name!r} takes {by_position[0]!r} only by position, but the trainer "
            "passes every argument by name. Remove the slash from its parameters."
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    names = {p.name for p in parameters if p.kind is not p.VAR_POSITIONAL}
    refused = [argument for argument in (*PASSED, *columns) if argument not in names]
    if refused:
        raise ValueError(
            f"Reward {name!r} does not accept {', '.join(refused)}, which the trainer passes "
            "to every reward by name. Add **kwargs to its parameters."
        )


def metric_name(reward: Any) -> str:
    """Return the name that TRL gives to a reward's metric."""
    if isinstance(reward, str):
        return reward.rstrip("/").split("/")[-1]
    if is_loaded_model(reward):
        return str(getattr(reward.config, "_name_or_path", "")).split("/")[-1]
    return reward_name(reward)


def is_loaded_model(reward: Any) -> bool:
    """Return whether a reward is a loaded model, not a function or the id of a model."""
    return hasattr(reward, "parameters") and hasattr(reward, "config")
