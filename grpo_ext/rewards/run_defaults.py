"""Set options of rewards that load a language model (`loads_model=True`) to the run's values."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from grpo_ext.common.columns import has_task
from grpo_ext.rewards.guard import unguarded
from grpo_ext.rewards.relevance import SEARCHED_ROWS, different_prompts
from grpo_ext.rewards.reward import Reward


def rewards_with_models(rewards: Iterable[Any]) -> list[Reward]:
    """Return the registered rewards that load a language model, unwrapping any `Guard`."""
    model_rewards = []
    for reward in rewards:
        reward = unguarded(reward)
        if isinstance(reward, Reward) and reward.registration.loads_model:
            model_rewards.append(reward)
    return model_rewards


def set_model(rewards: Sequence[Any], model: object, revision: str | None = None) -> None:
    """Set the options `model` and `revision` of rewards without a `model` to the run's model.

    A `revision` that is already set is kept.

    Args:
        rewards: the rewards of the run. Those that load a language model are changed in place.
        model: the folder or hub id of the model that the run starts from. If it is `None`, because
            the model is not known yet, nothing is set.
        revision: the model's revision on the hub.

    Raises:
        ValueError: if a reward needs the run's model and `model` is a loaded model, which training
            changes.
    """
    for reward in rewards_with_models(rewards):
        if model is None or reward.options.get("model") is not None:
            continue
        if not isinstance(model, str):
            raise ValueError(
                f"Reward {reward.name!r} needs a frozen model, but the trainer was given a "
                "loaded one, which training changes. Name the folder or hub id of a model, as in "
                f"build({reward.registration.name!r}, model=...)."
            )
        reward.options["model"] = model
        reward.options["revision"] = reward.options.get("revision") or revision


def set_prompts(rewards: Sequence[Any], rows: Iterable[Mapping[str, Any]] | None) -> None:
    """Set each reward's option `unrelated`, if it is `None`, to the first prompts in the data.

    These are the first distinct prompts, at most `num_unrelated + 1`, from the first
    `SEARCHED_ROWS` rows. All ranks, steps and resumed runs thus use the same prompts. A reward with
    `tasks` gets only prompts of these tasks. Rewards without an option `num_unrelated` are left
    unchanged, and so are all rewards if `rows` is `None`.
    """
    for reward in rewards_with_models(rewards):
        options = reward.options
        if rows is None or options.get("unrelated") is not None or "num_unrelated" not in options:
            continue
        prompts = []
        for row in islice(rows, SEARCHED_ROWS):
            if has_task(row, reward.tasks):
                prompts.append(row["prompt"])
        options["unrelated"] = different_prompts(prompts, options["num_unrelated"] + 1)
