"""Find the options of multiple-choice questions, and list them in a prompt."""

import re
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from grpo_ext.preflight.first_rows import Row
from grpo_ext.tasks.templates import is_field_name

LISTS = ("choices", "options", "endings", "candidates", "answer_choices")
POSITIONS = ("label", "correct", "answer_index", "answer_idx", "correct_option")
TEXTS = ("text", "value", "content")  # keys of an option's text, if the options are mappings
# Beginnings of the names of columns with one option each, such as `option_a` or `opa`.
PREFIXES = ("option", "opt", "op", "choice", "answer", "ans", "ending", "sol")
LETTERED = re.compile(r"\(?[A-Z][).:]")  # an option that already begins with its letter


@dataclass(frozen=True)
class Options:
    """The options of multiple-choice questions.

    Attributes:
        columns: the columns that contain the options.
        template: the template lines that list the options in a prompt, with a letter before each.
        unlettered: the same lines without added letters.
        texts: the options of each row.
    """

    columns: list[str]
    template: str
    unlettered: str
    texts: list[list[str]]


def find_options(rows: list[Row], names: list[str]) -> Options | None:
    """Return the options found in the columns `names`, or `None` if there are none."""
    for name in names:
        is_list = name.lower() in LISTS or (name == "answers" and has_positions(name, rows))
        options = options_in(name, rows) if is_list else None
        if options is not None:
            return options
    for prefix in ("", *PREFIXES):
        columns = numbered_columns(prefix, names)
        if len(columns) >= 2:
            return options_of_columns(columns, rows)
    return None


def has_positions(name: str, rows: list[Row]) -> bool:
    """Return whether a column may say which entry of each list in the column `name` is right.

    Only columns whose name is in `POSITIONS` count. If none of them holds positions, all entries of
    a list may be right answers.
    """
    for other in POSITIONS:
        if all(is_position(row.get(other), row.get(name)) for row in rows):
            return True
    return False


def is_position(value: object, entries: object) -> bool:
    """Return whether `value` can be a position in the list `entries`, counted from 0 or from 1.

    It may be an integer or a string of digits, but not a bool. Return `False` if `entries` is not a
    list.
    """
    if isinstance(value, bool) or not isinstance(entries, list):
        return False
    return str(value).isdecimal() and int(str(value)) <= len(entries)


def options_in(name: str, rows: list[Row]) -> Options | None:
    """Return the options in a column of lists or mappings, or `None` if the column contains none.

    All rows must have their options in the same form, one of these:

    - a list of at least two strings, or a mapping with such a list under one of `TEXTS`
    - a list of mappings with an option under one of `TEXTS`; the lists of all rows are equally long
    - a mapping with an option under each key (for example, a letter); all rows have the same keys,
      at least two, and each key must be a name that a template can contain
    """
    values: list[Any] = [row.get(name) for row in rows]
    if all(is_text_list(value) for value in values):
        return listed(name, name, values)
    for key in TEXTS:
        if all(isinstance(value, dict) and is_text_list(value.get(key)) for value in values):
            return listed(name, f"{name}[{key}]", [value[key] for value in values])
        if all(is_list_of_mappings(value, key) for value in values):
            fields = [f"{name}[{i}][{key}]" for i in range(len(values[0]))]
            texts = [[str(option[key]) for option in value] for value in values]
            return in_fields(name, fields, texts)
    letters = sorted(values[0]) if isinstance(values[0], dict) else []
    if not all(is_field_name(letter) and "]" not in letter for letter in letters):
        return None
    if len(letters) >= 2 and all(isinstance(v, dict) and sorted(v) == letters for v in values):
        fields = [f"{name}[{letter}]" for letter in letters]
        texts = [[str(value[letter]) for letter in letters] for value in values]
        return in_fields(name, fields, texts)
    return None


def is_text_list(value: object) -> bool:
    """Return whether a value is a list of two or more strings."""
    return isinstance(value, list) and len(value) >= 2 and all(isinstance(v, str) for v in value)


def is_list_of_mappings(value: object, key: str) -> bool:
    """Return whether a value is a non-empty list of mappings that all contain `key`."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(option, dict) and key in option for option in value)


def listed(column: str, field: str, texts: list[list[str]]) -> Options:
    """Return the options of a template field that contains a list of strings.

    The template adds letters, unless every option already begins with a letter, as in `A) red`.

    Args:
        column: the column that contains the lists.
        field: the template field of the lists, such as `choices[text]`.
        texts: the options of each row.
    """
    unlettered = f"{{{field}:lines}}"
    has_letters = all(LETTERED.match(text) for options in texts for text in options)
    template = unlettered if has_letters else f"{{{field}:letters}}"
    return Options([column], template, unlettered, texts)


def in_fields(column: str, fields: list[str], texts: list[list[str]]) -> Options | None:
    """Return options that each have their own template field.

    Return `None` if a row has more or fewer options than there are fields.

    Args:
        column: the column that contains the options.
        fields: the template fields, one for each option.
        texts: the options of each row.
    """
    if any(len(options) != len(fields) for options in texts):
        return None
    return Options([column], *lines_of(fields), texts)


def options_of_columns(columns: list[str], rows: list[Row]) -> Options:
    """Return the options of rows that have a separate column for each option."""
    texts = [[str(row.get(column)) for column in columns] for row in rows]
    return Options(columns, *lines_of(columns), texts)


def lines_of(fields: list[str]) -> tuple[str, str]:
    """Return two templates with one line per field: one with letters, and one without.

    The template with letters contains only the first 26 fields.
    """
    lettered = []
    for letter, field in zip(ascii_uppercase, fields, strict=False):
        lettered.append(f"{letter}) {{{field}}}")
    return "\n".join(lettered), "\n".join(f"{{{field}}}" for field in fields)


def numbered_columns(prefix: str, names: list[str]) -> list[str]:
    """Return the columns named `prefix` plus a letter (a to j) or a digit, sorted by that mark.

    An underscore or a space may follow the prefix. Case is ignored, but without a prefix only
    capital letters count. Return an empty list if there are both letters and digits, or if the
    marks do not form a sequence without gaps that begins with `a`, 0 or 1.
    """
    pattern = re.compile(f"(?i){prefix}[_ ]?([a-j]|[0-9])" if prefix else "([A-J])")
    found = {}
    for name in names:
        match = pattern.fullmatch(name)
        if match is not None:
            found[match[1].lower()] = name
    for order in (ascii_lowercase, "0123456789", "123456789"):
        columns = []
        for mark in order:
            if mark not in found:
                break
            columns.append(found[mark])
        if len(columns) == len(found):
            return columns
    return []
