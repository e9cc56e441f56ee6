"""The recipe under construction: the translated keys, the remaining settings, and the remarks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from grpo_ext.common.untrusted import is_secret, one_line
from grpo_ext.recipe.fields import hints_of
from grpo_ext.recipe.foreign import entry_of
from grpo_ext.recipe.keys import keys_of
from grpo_ext.recipe.values import convert
from grpo_ext.tasks.prompts import Prompts

MOST_NUMBER = 10**6  # the largest number that is taken over from another project
MOST_SHOWN = 160  # characters of a value that a remark shows


@dataclass(frozen=True)
class Setting:
    """A setting in a file of another project."""

    key: str  # as written in the file; the parts of a nested key are joined by dots
    value: Any
    place: str  # such as `run.sh:12`
    unknown: str | None = None  # the parts of the value that the file does not set, such as `$DATA`


@dataclass(frozen=True)
class Remark:
    """A note for the user about something that was not translated exactly, with advice."""

    text: str
    key: str | None = None  # the key of the other project
    place: str | None = None
    by_hand: bool = True  # whether it is listed under "By hand" instead of "Left out"

    def __str__(self) -> str:
        named = f"{self.key}: {self.text}" if self.key else self.text
        return one_line(f"{self.place}: {named}" if self.place else named)


@dataclass
class Source:
    """The settings of a file of another project."""

    project: str  # one of `read_source.PROJECTS`
    name: str  # the name of the file
    settings: dict[str, Setting]
    processes: int | None = None  # training processes, if the file says so
    remarks: list[Remark] = field(default_factory=list)


@cache
def recipe_hints() -> dict[str, Any]:
    """Return the type of each key that a recipe with `task: prompts` can have, by key."""
    hints: dict[str, Any] = {}
    for cls in (Prompts, *reversed(keys_of(grpo=True).values())):
        hints |= hints_of(cls)
    return hints


def is_known(key: str) -> bool:
    """Return whether a key is known from another project, or its last part is a recipe key."""
    return entry_of(key) is not None or key.rpartition(".")[2] in recipe_hints()


class Draft:
    """A recipe under construction.

    Attributes:
        left: the settings that have not been translated yet, by key.
        values: the values of the recipe so far, by key.
        comments: comments for lines of the recipe, by key.
        missing: the recipe keys that the user must set by hand, each with the reason.
        remarks: notes for the user about settings that were not translated exactly.
    """

    def __init__(self, source: Source):
        self.left = dict(source.settings)
        self.values: dict[str, Any] = {}
        self.comments: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.remarks = list(source.remarks)

    def take(self, *keys: str) -> Setting | None:
        """Remove all of `keys` from `left`, and return the first setting among them, or `None`."""
        taken = [self.left.pop(key, None) for key in keys]
        return next((setting for setting in taken if setting is not None), None)

    def known(self, *keys: str, default: Any = None) -> Any:
        """Remove all of `keys` from `left`, and return the first value among them, or `default`.

        If a part of the value is not set in the file, such as `$DATA`, add a remark and return
        `default`.
        """
        setting = self.take(*keys)
        if setting is None:
            return default
        if setting.unknown is not None:
            self.remark(setting, f"its value needs {setting.unknown}, which the file does not set.")
            return default
        return setting.value

    def number(self, *keys: str, default: int) -> int:
        """Remove all of `keys` from `left`, and return the first value among them as an integer.

        The value must be from 1 to `MOST_NUMBER`. Return `default` if no key is set, or if the
        value is `None`, -1 or 0, which stand for no number. For any other value, and for one with a
        part that is not set in the file, add a remark and return `default`.
        """
        setting = self.left.get(next((key for key in keys if key in self.left), ""))
        value = self.known(*keys)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is int and 0 < value <= MOST_NUMBER:
            return value
        if value not in (None, 0, -1):
            fallback = f" The default is used: {default}." if default else ""
            self.remark(
                setting,
                f"not taken over: {shown(value)} is not a whole number from 1 to {MOST_NUMBER:,}."
                f"{fallback}",
            )
        return default

    def write(
        self, key: str, value: Any, setting: Setting | None = None, comment: str = ""
    ) -> None:
        """Add a key to the recipe, or a remark if its value cannot be taken over.

        If a part of the value is not set in the file, the key is added to `missing`. Secrets are
        left out. A `top_k` of -1, which stands for all tokens in vLLM, becomes 0.

        Args:
            key: a key of `recipe_hints`.
            value: the value of the key.
            setting: the setting from which the value comes, or `None` if it is not from the file.
            comment: a comment for the key's line in the recipe.
        """
        if setting is not None and setting.unknown is not None:
            self.values.pop(key, None)
            self.missing[key] = f"{shown(setting.value)}: the file does not set {setting.unknown}"
            self.remark(setting, f"the file does not set {setting.unknown}. Set {key} by hand.")
            return
        if is_secret(key):
            self.remark(setting, "left out, because a recipe should not contain secrets.")
            return
        if key in ("top_k", "eval_top_k") and value == -1:  # in vLLM, all tokens
            value = 0
        try:
            converted = convert(key, value, recipe_hints()[key])
        except ValueError as error:
            self.remark(setting, f"not taken over. {error}")
            return
        # 20 does not become 20.0 if the field also accepts fractions
        self.values[key] = value if type(value) is int and value == converted else converted
        self.missing.pop(key, None)
        self.comments.pop(key, None)
        if comment:
            self.comments[key] = comment

    def move(self, theirs: str, ours: str, comment: str = "") -> None:
        """Remove the setting `theirs` and, if it is set, write its value as the key `ours`."""
        setting = self.take(theirs)
        if setting is not None:
            self.write(ours, setting.value, setting, comment)

    def default(self, key: str, value: Any, project: str) -> None:
        """Write the default `value` of `project`, unless `key` is in `values` or `missing`."""
        if key not in self.values and key not in self.missing:
            self.write(key, value, comment=f"the default of {project}")

    def remark(self, setting: Setting | None, text: str, by_hand: bool = True) -> None:
        """Add a remark about a setting or, if `setting` is `None`, about the whole file.

        Args:
            setting: the setting, whose key and place are added to the remark.
            text: the remark.
            by_hand: whether the remark belongs under "By hand" instead of "Left out". A remark
                about the whole file always belongs under "By hand".
        """
        if setting is None:
            self.remarks.append(Remark(text))
        else:
            self.remarks.append(Remark(text, setting.key, setting.place, by_hand))


def texts_of(setting: Setting | None) -> list[str]:
    """Return the value of a setting as a list of strings, which is empty if there is no value."""
    if setting is None or setting.value is None:
        return []
    values = setting.value if isinstance(setting.value, list) else [setting.value]
    return [str(value) for value in values]


def shown(value: Any) -> str:
    """Return a value as text on one line, truncated to `MOST_SHOWN` characters."""
    text = one_line(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ..."
