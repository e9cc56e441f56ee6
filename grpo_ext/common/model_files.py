"""Check a model folder before the libraries `transformers` and `tokenizers` load it.

The libraries open the folder's files themselves, and build whatever `config.json` and
`tokenizer.json` describe.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_ext.common.foreign_files import (
    ForeignFile,
    entries,
    open_plain,
    read_text,
    special_file,
)

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
MOST_BYTES = 2**28  # maximum size of either file
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
MOST_LAYERS = 10_000
# a sequence of characters, each of which occurs at least once
_NEVER_EMPTY = re.compile(r"(?:(?:[^\\()|*?^$\[\]{}+.]|\\[sSdDwW])(?:\+|\{[1-9][0-9]*,?\})?)+")
MOST_GROWTH = 10_000  # maximum factor by which a tokenizer's replacements may lengthen a string


def model_files_fault(folder: Path) -> str | None:
    """Return an error message if a file in a model folder could block loading or exhaust memory.

    Return `None` if there is no such file. Links may point anywhere, because large weights are
    often stored on another disk.

    Raises:
        OSError: if the folder cannot be listed or has too many entries.
    """
    special = special_file(folder)
    if special is not None:
        return f"{special} is a FIFO, a device or a socket, not a plain file: remove it."
    for path in entries(folder):
        try:
            if path.is_file():
                open_plain(path).close()
        except ForeignFile as error:
            return f"{path} cannot be loaded: {error.strerror}. Replace or remove the file."
        except OSError:  # loading the model reports the error
            continue
    config = read_json(folder / CONFIG)
    for mapping in mappings_in(config):
        for name in LAYERS:
            count = mapping.get(name)
            if isinstance(count, int) and count > MOST_LAYERS:
                return (
                    f"{folder / CONFIG} has {name}: {count}, but a model may have at most "
                    f"{MOST_LAYERS:,} layers. Correct the number, or use another model."
                )
    if growth_of_text(read_json(folder / TOKENIZER)) > MOST_GROWTH:
        return (
            f"{folder / TOKENIZER} has replacements that can make a string more than "
            f"{MOST_GROWTH:,} times as long: remove them."
        )
    return None


def growth_of_text(tokenizer: Any) -> int:
    """Return an upper bound on the factor by which a tokenizer's replacements lengthen a string.

    The bound is the product of the bounds of all replacements: the length of the replacement
    string, at least 1. If the pattern may match the empty string, the replacement string can be
    inserted on both sides of each character. Without replacements, the bound is 1.

    Args:
        tokenizer: the content of `tokenizer.json`; 1 is returned if it is not a mapping.
    """
    growth = 1
    if not isinstance(tokenizer, dict):
        return growth
    for part in ("normalizer", "pre_tokenizer"):
        for mapping in mappings_in(tokenizer.get(part)):
            content = mapping.get("content")
            if mapping.get("type") != "Replace" or not isinstance(content, str):
                continue
            if never_empty(mapping.get("pattern")):
                growth *= max(1, len(content))
            else:
                growth *= 1 + 2 * len(content)
    return growth


def never_empty(pattern: object) -> bool:
    """Return whether the pattern of a replacement clearly does not match the empty string.

    `pattern` is a mapping `{"String": ...}` or `{"Regex": ...}`. Of regular expressions, only
    sequences of characters that may be repeated qualify, such as ` {2,}` or `\\s+`.
    """
    if not isinstance(pattern, dict):
        return False
    text = pattern.get("String")
    if isinstance(text, str):
        return text != ""
    expression = pattern.get("Regex")
    return isinstance(expression, str) and _NEVER_EMPTY.fullmatch(expression) is not None


def read_json(path: Path) -> Any:
    """Return a JSON file's content; `None` if it is missing, unreadable, too large or invalid."""
    try:
        return json.loads(read_text(path, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def mappings_in(content: Any) -> Iterator[dict[str, Any]]:
    """Yield all mappings in a parsed JSON document, each before the mappings inside it."""
    waiting = [content]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
