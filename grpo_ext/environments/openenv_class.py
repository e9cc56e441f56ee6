"""OpenEnv classes, and others with `reset` and `step`: `environment: {name: openenv:CLASS}`.

An instance of the class runs in this process; no OpenEnv server or client is started.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from grpo_ext.common.modules import load_class
from grpo_ext.environments.stepped import InvalidAction, SteppedEnvironment
from grpo_ext.rewards.answers import answer_without_thoughts

OUTCOME = {"done", "reward", "metadata"}  # observation fields that the model does not see


class OpenEnvEnvironment(SteppedEnvironment):
    """Plays an instance of a class with `reset` and `step`, such as OpenEnv's `Environment`.

    The text in a turn's last `<answer>` block is converted to an action. If no block is closed, or
    the last one is empty, the turn without its thoughts is converted instead. If the action class
    has exactly one field without a default, and that field is a `str`, the text becomes the field's
    value. Otherwise, the text must be a JSON object with the fields of the action; if it is not,
    the turn has no valid action. If there is no action class, `step` receives the whole turn as a
    string.

    Args:
        place: the class, as `package.module:Class` or `file.py:Class`.
        args: keyword arguments for the class.
        action: the class of the actions, in the same form as `place`; by default, the first
            pydantic model among the annotated parameters of `step`.
        invalid_action_reward: added to the score for each turn without a valid action.

    Raises:
        ValueError: if a class cannot be imported, if the environment class lacks `reset` or `step`
            or is an `MCPEnvironment`, or if `action` is not a pydantic model. Errors of the
            constructor are raised unchanged.
    """

    def __init__(
        self,
        place: str,
        args: Mapping[str, Any] | None = None,
        action: str | None = None,
        invalid_action_reward: float = 0.0,
    ):
        cls = load_class("environment", place, {})
        for method in ("reset", "step"):
            if not callable(getattr(cls, method, None)):
                raise ValueError(
                    f"{place} has no method {method!r}, so it cannot be played. Use a class with "
                    "`reset` and `step`."
                )
        if any(base.__name__ == "MCPEnvironment" for base in cls.__mro__):
            raise ValueError(
                f"{place} cannot be played: it is a subclass of OpenEnv's MCPEnvironment, whose "
                "tools are called through a server with its own event loop. Use a class that "
                "derives from OpenEnv's `Environment` directly and handles actions in `step`."
            )
        super().__init__(cls(**(args or {})), invalid_action_reward)
        self._action_class = annotated_action(cls)
        if action is not None:
            self._action_class = load_class("action", action, {})
            is_class = isinstance(self._action_class, type)
            if not is_class or not issubclass(self._action_class, BaseModel):
                raise ValueError(
                    f"the action class {action} is not a pydantic model. Set `action` to one, such "
                    "as a subclass of OpenEnv's Action."
                )

    def action(self, text: str) -> object:
        if self._action_class is None:
            return text
        answer = answer_without_thoughts(text)
        field = text_field(self._action_class)
        try:
            if field is not None:
                return self._action_class(**{field: answer})
            return self._action_class.model_validate_json(answer)
        except ValidationError as error:
            faults = []
            for fault in error.errors():
                place = [*map(str, fault["loc"]), ""] if fault["loc"] else []
                faults.append(f"{': '.join(place)}{fault['msg']}")
            raise InvalidAction(f"error: {'; '.join(faults)}") from error

    def observation_text(self, observation: object) -> str:
        if not isinstance(observation, BaseModel):
            return str(observation)
        fields = observation.model_dump(mode="json", exclude=OUTCOME)
        if len(fields) == 1 and isinstance(next(iter(fields.values())), str):
            return next(iter(fields.values()))
        return json.dumps(fields, ensure_ascii=False)


def annotated_action(cls: type) -> type[BaseModel] | None:
    """Return the first pydantic model that annotates a parameter of `step`.

    Return `None` if there is none, or if an annotation cannot be resolved.
    """
    step: Any = cls.step  # type: ignore[attr-defined]
    try:
        hints = list(typing.get_type_hints(step).items())
    except NameError:  # a name that only type checkers import
        return None
    for name, hint in hints:
        if name != "return" and isinstance(hint, type) and issubclass(hint, BaseModel):
            return hint
    return None


def text_field(action_class: type[BaseModel]) -> str | None:
    """Return the name of the field without a default, if there is only one and it is a `str`.

    Otherwise, return `None`.
    """
    required = [
        (name, field) for name, field in action_class.model_fields.items() if field.is_required()
    ]
    if len(required) == 1 and required[0][1].annotation is str:
        return required[0][0]
    return None
