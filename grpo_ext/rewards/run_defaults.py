"""Options that a run sets for rewards which load a language model (`register(..., loads_model=True)`)."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from grpo_ext.common.columns import TASK
from grpo_ext.rewards.guard import Guard
from grpo_ext.rewards.relevance import SEARCHED_ROWS, different_prompts
from grpo_ext.rewards.reward import Reward


def rewards_with_models(rewards: Iterable[Any]) -> list[Reward]:
    """Return the registered rewards that load a language model; `Guard`s are looked into."""
    functions = [reward.reward if isinstance(reward, Guard) else reward for reward in rewards]
    return [
        function
        for function in functions
        if isinstance(function, Reward) and function.registration.loads_model
    ]


def set_model(rewards: Sequence[Any], model: Any, revision: str | None = None) -> None:
    """Give rewards that load a model, and name none, the model that the run starts from; None if it is not known yet.

    Raises:
        ValueError: if `model` is not a folder or id but a loaded model, which training changes.
    """
    for reward in rewards_with_models(rewards):
        if model is None or reward.options.get("model") is not None:
            continue
        if not isinstance(model, str):
            raise ValueError(
                f"Reward {reward.name!r} loads a frozen model, and the trainer has got a loaded one, which training changes: "
                f"name a folder or id, build({reward.registration.name!r}, model=...)."
            )
        reward.options |= {"model": model, "revision": revision}


def set_prompts(rewards: Sequence[Any], rows: Iterable[Mapping[str, Any]] | None) -> None:
    """Give rewards that compare prompts, and name none, the first different ones of the run's data.

    All ranks, steps and resumed runs have the same ones. A reward with `tasks` gets prompts of these tasks.
    """
    for reward in rewards_with_models(rewards):
        options = reward.options
        if rows is None or options.get("unrelated") is not None or "num_unrelated" not in options:
            continue
        prompts = [
            row["prompt"]
            for row in islice(rows, SEARCHED_ROWS)
            if reward.tasks is None or row.get(TASK) in reward.tasks
        ]
        options["unrelated"] = different_prompts(prompts, options["num_unrelated"] + 1)
