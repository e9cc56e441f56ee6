"""The words of a recipe: flat YAML and `--key value` from the command line, each key with the place where it was set.

Nothing heavy is imported here: the launcher reads a recipe with it and answers at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from grpo_ext.recipe.problems import Problem, RecipeError

Settings = dict[str, tuple[Any, str | None]]  # key -> (value, place)
COMMAND_LINE = "command line"
OVERRIDES = "overrides"


def read_settings(path: str | Path | None, overrides: dict[str, Any] | list[str] | None) -> Settings:
    """Key to (value, place) of the file, replaced by the overrides."""
    settings: Settings = read_yaml(path) if path is not None else {}
    if isinstance(overrides, dict):
        settings.update({key: (value, OVERRIDES) for key, value in overrides.items()})
    else:
        settings.update({key: (value, COMMAND_LINE) for key, value in parse_words(overrides or []).items()})
    return settings


def read_yaml(path: str | Path) -> Settings:
    """The keys of a flat YAML file, each with its value and `file:line`.

    Raises:
        RecipeError: if it is not YAML, not a mapping, or sets a key twice.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no recipe at {path}.") from None
    except IsADirectoryError:
        raise FileNotFoundError(f"{path} is a folder; name a recipe in it.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError([Problem(f"not a YAML file: {error}", place=str(path))]) from None
    if values is None:  # an empty file, or comments alone
        return {}
    if not isinstance(values, dict):
        raise RecipeError([Problem("a recipe is lines of `key: value`.", place=str(path))])
    settings: Settings = {}
    problems = []
    for key_node, value_node in root.value:
        problems += [
            Problem(f"{twice.value} is set a second time.", key_node.value, f"{path}:{twice.start_mark.line + 1}")
            for twice in _twice(value_node)
        ]
        key, place = key_node.value, f"{path}:{key_node.start_mark.line + 1}"
        if key == "<<" or not isinstance(key, str):
            problems.append(Problem("a key of a recipe is a plain word; write merged keys out.", place=place))
        elif key in settings:
            problems.append(Problem(f"{key} is set a second time (first at {settings[key][1]}).", key, place))
        else:
            settings[key] = (values[key] if key in values else values[yaml.safe_load(key)], place)
    if problems:
        raise RecipeError(problems)
    return settings


def _twice(node: yaml.Node) -> Iterator[yaml.Node]:
    """The keys that a mapping within a value sets a second time."""
    if not isinstance(node, yaml.CollectionNode):
        return
    if isinstance(node, yaml.MappingNode):
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for i, key in enumerate(keys):
            if any(key.value == earlier.value for earlier in keys[:i]):
                yield key
    for part in node.value:
        yield from _twice(part[1] if isinstance(node, yaml.MappingNode) else part)


class Word(str):
    """A value from the command line: text for a field that takes text, YAML for any other."""


def parse_words(words: list[str]) -> dict[str, Word]:
    """`--key value`, `--key=value` and a bare `--flag` (true)."""
    settings: dict[str, Word] = {}
    i = 0
    while i < len(words):
        word = words[i]
        if not word.startswith("--") or len(word) == 2:
            raise RecipeError([Problem(f"expected `--key value`, got {word!r}.", place=COMMAND_LINE)])
        key, _, text = word[2:].partition("=")
        if "=" not in word:
            if i + 1 < len(words) and not words[i + 1].startswith("--"):
                i += 1
                text = words[i]
            else:
                text = "true"
        settings[key.replace("-", "_")] = Word(text)
        i += 1
    return settings


def split_config(words: list[str]) -> tuple[str | None, list[str]]:
    """The recipe after `--config`, and all other words."""
    for i, word in enumerate(words):
        if word == "--config" and i + 1 < len(words):
            return words[i + 1], [*words[:i], *words[i + 2 :]]
        if word.startswith("--config="):
            return word.partition("=")[2], [*words[:i], *words[i + 1 :]]
    return None, list(words)
