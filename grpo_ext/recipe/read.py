"""Read flat YAML recipes and `--key value` words, with the place where each key was set.

This module imports nothing heavy, so the launcher can read a recipe immediately.
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
Overrides = dict[str, Any] | list[str] | None  # values by key, or words such as `--key value`
COMMAND_LINE = "command line"
MOST_BYTES = 2**20  # size limit of a recipe
MAPPING_TAG = "tag:yaml.org,2002:map"
NULL_TAG = "tag:yaml.org,2002:null"


def read_settings(path: str | Path | None, overrides: Overrides) -> Settings:
    """Return the settings of the file, with the overrides taking precedence.

    Raises:
        FileNotFoundError: if there is no such file or recipe, or it is a folder.
        OSError: if the file cannot be opened.
        RecipeError: if the file is not flat YAML or sets a key twice, or a word belongs to no key.
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
    """Return the value and place (`file:line`) of each key of a recipe; empty for an empty file.

    Args:
        path: the file or the name of a recipe.
        within: the folder that the file must be in, as for `open_plain`; `None`: any folder.

    Raises:
        FileNotFoundError: if there is no such recipe, or it is a folder.
        OSError: if the file cannot be opened.
        RecipeError: if it is not flat YAML, sets a key twice, is too large, is not a regular file,
            or is outside `within`.
    """
    path = recipe_path(path)
    try:
        root = compose_yaml(read_bytes(path, MOST_BYTES, within))
    except (ForeignFile, PermissionError) as error:
        if path.is_dir():
            raise FileNotFoundError(
                f"{path} is a folder. Write the path of a recipe file in it."
            ) from None
        message = f"cannot be read as a recipe: {error.strerror}."
        raise RecipeError([Problem(message, place=str(path))]) from None
    except YamlFault as fault:
        message = f"not a recipe: {fault.advice}"
        raise RecipeError([Problem(message, place=f"{path}:{fault.line}")]) from None
    if root is None or root.tag == NULL_TAG:  # an empty file, or only comments
        return {}
    if root.tag != MAPPING_TAG or not isinstance(root, yaml.MappingNode):
        raise RecipeError([Problem("not a recipe: write lines of `key: value`.", place=str(path))])
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
                    "`<<` merges keys, which a recipe does not support. Write each key on its own "
                    "line instead.",
                    place=place,
                )
            )
            continue
        if not isinstance(key, str):
            problems.append(
                Problem(
                    "a key of a recipe must be a plain word, not a list or a mapping. Write lines "
                    "of `key: value`.",
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
    """Yield both nodes of each key that is set twice in a mapping, at any depth."""
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
    """A value from the command line; the type of its field decides if it is a string or YAML."""


def parse_words(words: list[str]) -> dict[str, Word]:
    """Parse words into settings: `--key value`, `--key=value` or a bare `--flag` (true).

    Hyphens in a key become underscores.

    Raises:
        RecipeError: if a word belongs to no key.
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
    """Return the message for a stray word after `key`; `left` contains the next words, reversed."""
    message = f"expected `--key value`, got {word!r}."
    if key is None:
        return message
    entries = [settings[key], word]
    for following in reversed(left):
        if following.startswith("--"):
            break
        entries.append(following)
    return f"{message} If {key} is a list, write it as one word: --{key} '[{', '.join(entries)}]'."


def split_config(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the recipe that `--config` names (`None` if it is missing), and all other words.

    Raises:
        SystemExit: if `--config` has no value.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    options, remaining = parser.parse_known_args(words)
    return options.config, remaining
