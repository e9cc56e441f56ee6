"""Classes of OpenEnv, and others with `reset` and `step`: `environment: {name: openenv:CLASS}`.

An instance of the class is played in this process; no server and no client of OpenEnv is started.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from grpo_ext.common.modules import load_class
from grpo_ext.environments.stepped import InvalidAction, SteppedEnvironment
from grpo_ext.rewards.answers import last_answer, without_thoughts

OUTCOME = {"done", "reward", "metadata"}  # fields of OpenEnv's observations that are not observed


class OpenEnvEnvironment(SteppedEnvironment):
    """An instance of a class with `reset` and `step`, such as a subclass of OpenEnv's Environment.

    The text in the answer tags of a turn, or else the turn without its thoughts, becomes an action.
    If the action class has exactly one field without a default and its type is `str`, the text
    becomes the value of that field; otherwise the text must be a JSON object with the fields.
    Without an action class, `step` gets the whole turn.

    Args:
        place: the class, as `package.module:Class` or `file.py:Class`.
        args: arguments of the class.
        action: the class of the actions, in the same form; by default, the first pydantic model in
            the annotations of `step`.
        invalid_action_reward: see `SteppedEnvironment`.

    Raises:
        ValueError: if a class cannot be imported, lacks `reset` or `step`, or calls tools by MCP,
            or if `action` is not a pydantic model. Errors of the constructor are raised unchanged.
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
                    f"{place} has no method {method!r}, so it cannot be played. Name a class with "
                    "`reset` and `step`."
                )
        if any(base.__name__ == "MCPEnvironment" for base in cls.__mro__):
            raise ValueError(
                "an MCPEnvironment of OpenEnv cannot be played, because it calls its tools through "
                "a server with its own event loop. Name a class whose `step` gets an action."
            )
        super().__init__(cls(**(args or {})), invalid_action_reward)
        self._action_class = annotated_action(cls)
        if action is not None:
            self._action_class = load_class("action", action, {})
            is_class = isinstance(self._action_class, type)
            if not is_class or not issubclass(self._action_class, BaseModel):
                raise ValueError(
                    f"the action class {action} is not a pydantic model. In `action`, name one, "
                    "such as a subclass of OpenEnv's Action."
                )

    def action(self, text: str) -> object:
        if self._action_class is None:
            return text
        answer = (last_answer(text) or without_thoughts(text)).strip()
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
    """Return the first pydantic model among the annotated parameters of `step`, else `None`."""
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
    """Return the name of the only field without a default if its type is `str`, else `None`."""
    required = [
        (name, field) for name, field in action_class.model_fields.items() if field.is_required()
    ]
    if len(required) == 1 and required[0][1].annotation is str:
        return required[0][0]
    return None
