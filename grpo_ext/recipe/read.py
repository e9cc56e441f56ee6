"""Read settings from YAML recipes and the command line, with the place where each was set.

This module imports neither torch nor TRL, so the launcher can read a recipe immediately.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from grpo_ext.common.foreign_files import ForeignFile, read_bytes
from grpo_ext.common.yaml_text import YamlFault, compose_yaml, construct_yaml
from grpo_ext.recipe.folder import recipe_path
from grpo_ext.recipe.problems import Problem, RecipeError

Settings = dict[str, tuple[Any, str | None]]  # key -> (value, place)
Overrides = dict[str, Any] | list[str] | None  # by key, or as command-line arguments
COMMAND_LINE = "command line"
MOST_BYTES = 2**20  # size limit of a recipe
MAPPING_TAG = "tag:yaml.org,2002:map"
NULL_TAG = "tag:yaml.org,2002:null"


def read_settings(path: str | Path | None, overrides: Overrides) -> Settings:
    """Return the settings of a recipe, in which `overrides` replace the values of the file.

    Args:
        path: the file or the name of a recipe; `None` if there are only overrides.
        overrides: a dict of values by key, or command-line arguments such as `["--beta", "0.1"]`.

    Returns:
        For each key, its value and the place where it was set.

    Raises:
        FileNotFoundError: if there is no such file or recipe, or it is a folder.
        OSError: if the file cannot be opened.
        RecipeError: if the file is not a recipe (see `read_yaml`), or one of the command-line
            arguments belongs to no key.
    """
    settings: Settings = {}
    if path is not None:
        settings = read_yaml(path)
    place = COMMAND_LINE
    values: Mapping[str, Any] = {}
    if isinstance(overrides, dict):
        place = "overrides"
        values = overrides
    elif overrides:
        values = parse_words(overrides)
    for key, value in values.items():
        settings[key] = (value, place)
    return settings


def read_yaml(path: str | Path, within: Path | None = None) -> Settings:
    """Return the value and the place (`file:line`) of each key of a recipe.

    The result is empty if the file is empty or contains only comments.

    Args:
        path: the file or the name of a recipe.
        within: the folder that must contain the file after all links are resolved; `None` allows
            any folder.

    Raises:
        FileNotFoundError: if there is no such file or recipe, or it is a folder.
        OSError: if the file cannot be opened.
        RecipeError: if the file is not a valid YAML mapping, has a key that is a list, a mapping or
            `<<`, sets a key twice (at any depth), is too large, cannot be read, is not a regular
            file, or is outside `within`.
    """
    path = recipe_path(path)
    try:
        root = compose_yaml(read_bytes(path, MOST_BYTES, within))
    except (ForeignFile, PermissionError) as error:
        if path.is_dir():
            raise FileNotFoundError(
                f"{path} is a folder. Pass the path of a recipe file in it."
            ) from None
        message = f"cannot be read as a recipe: {error.strerror}."
        raise RecipeError([Problem(message, place=str(path))]) from None
    except YamlFault as fault:
        message = f"not a recipe: {fault.advice}"
        raise RecipeError([Problem(message, place=f"{path}:{fault.line}")]) from None
    if root is None or root.tag == NULL_TAG:  # an empty file, or only comments
        return {}
    if root.tag != MAPPING_TAG or not isinstance(root, yaml.MappingNode):
        raise RecipeError(
            [Problem("not a recipe: expected lines of `key: value`.", place=str(path))]
        )
    settings: Settings = {}
    problems = [
        Problem(
            f"{key.value} is set twice (first at {_place(path, first)}). Remove one of the two.",
            key.value,
            _place(path, key),
        )
        for first, key in _repeated_keys(root)
    ]
    for key_node, value_node in root.value:
        key = key_node.value
        place = _place(path, key_node)
        if key == "<<":
            problems.append(
                Problem(
                    "`<<` merges keys, which a recipe does not support. Set each key on a line of "
                    "its own.",
                    place=place,
                )
            )
            continue
        if not isinstance(key, str):
            problems.append(
                Problem(
                    "a key of a recipe must be a plain word, not a list or a mapping. Use lines of "
                    "`key: value`.",
                    place=place,
                )
            )
            continue
        try:
            settings[key] = (construct_yaml(value_node), place)
        except YamlFault as fault:
            problems.append(Problem(f"{key}: {fault.advice}", key, f"{path}:{fault.line}"))
    if problems:
        raise RecipeError(problems)
    return settings


def _place(path: Path, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"


def _repeated_keys(node: yaml.Node) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yield (first node, repeated node) for each key that a mapping at any depth sets again."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and seen.setdefault(key.value, key) is not key:
                yield seen[key.value], key
    if isinstance(node, yaml.CollectionNode):
        for part in node.value:
            child = part[1] if isinstance(part, tuple) else part  # a mapping has (key, value)
            yield from _repeated_keys(child)


class Word(str):
    """A value from the command line; its field's type decides whether it is parsed as YAML."""


def parse_words(words: list[str]) -> dict[str, Word]:
    """Parse command-line arguments into values by key.

    The forms are `--key value`, `--key=value` and a bare `--key`, which sets `"true"`. Hyphens in a
    key become underscores. If a key occurs more than once, its last value is returned.

    Raises:
        RecipeError: if an argument is neither a key nor the value of one.
    """
    settings: dict[str, Word] = {}
    left = words[::-1]
    last: str | None = None  # the key before the next word
    while left:
        word = left.pop()
        if not word.startswith("--") or len(word) == 2:
            raise RecipeError([Problem(_stray(word, left, last, settings), place=COMMAND_LINE)])
        key, sign, text = word[2:].partition("=")
        if not sign:
            text = left.pop() if left and not left[-1].startswith("--") else "true"
        last = key.replace("-", "_")
        settings[last] = Word(text)
    return settings


def _stray(word: str, left: list[str], key: str | None, settings: dict[str, Word]) -> str:
    """Return the error message for a command-line argument that belongs to no key.

    Args:
        word: the argument.
        left: the arguments after it, in reverse order.
        key: the last key before it; `None` if there is none.
        settings: the values parsed so far.
    """
    message = f"expected `--key value`, got {word!r}."
    if key is None or is_option(word):
        return message
    entries = [settings[key], word]
    for following in reversed(left):
        if is_option(following):
            break
        entries.append(following)
    return f"{message} To set {key} to a list, use one argument: --{key} '[{', '.join(entries)}]'."


def is_option(word: str) -> bool:
    """Return whether a command-line argument begins with a hyphen that no digit follows."""
    return word.startswith("-") and not word[1:2].isdecimal()


def split_config(words: list[str]) -> tuple[str | None, list[str]]:
    """Split command-line arguments into the value of `--config` and all other arguments.

    The value is `None` if `--config` is not given.

    Raises:
        SystemExit: if `--config` is given without a value.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    options, remaining = parser.parse_known_args(words)
    return options.config, remaining
