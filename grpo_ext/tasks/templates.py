"""Fill prompt templates with the columns of a row."""

import string
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any


class PromptFormatter(string.Formatter):
    """Formats like `str.format`, with two additional formats for lists, `letters` and `lines`.

    `{choices:letters}` writes one option per line, as in `A) red`, and `{verses:lines}` one entry
    per line. Both raise `ValueError` if the value is not a list, and `letters` also if there are
    more than 26 options. A field without a name, such as `{}` or `{0}`, raises `ValueError` too.
    """

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if isinstance(key, int):
            raise ValueError(
                "user_prompt has a field without the name of a column, such as {} or {0}. Put a "
                "column's name in the braces, or write {{ and }} for braces that do not enclose a "
                "field."
            )
        return super().get_value(key, args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "letters":
            entries = entries_of(value, format_spec)
            if len(entries) > len(ascii_uppercase):
                raise ValueError(
                    f"user_prompt formats a list of {len(entries)} options with `:letters`, but "
                    f"there are only {len(ascii_uppercase)} letters. Use `:lines` instead."
                )
            lettered = zip(ascii_uppercase, entries, strict=False)
            return "\n".join(f"{letter}) {entry}" for letter, entry in lettered)
        if format_spec == "lines":
            return "\n".join(entries_of(value, format_spec))
        return super().format_field(value, format_spec)


def entries_of(value: object, format_spec: str) -> list[str]:
    """Return the entries of a list as strings.

    Args:
        value: the value to format.
        format_spec: the format, "letters" or "lines", for the error message.

    Raises:
        ValueError: if the value is not a list.
    """
    if not isinstance(value, list):
        raise ValueError(
            f"user_prompt formats a column with `:{format_spec}`, which needs a list, but its "
            f"value is {str(value)[:80]!r}. Remove `:{format_spec}`."
        )
    return [str(entry) for entry in value]


def fill(template: str, row: Mapping[str, Any]) -> str:
    """Fill a template: replace each field in braces with the value of that column in the row.

    Raises:
        ValueError: if the template is malformed, if a format cannot be applied to its value (for
            example, `:letters` or `:lines` to a string), or if the row lacks a column or an entry
            such as `{choices[4]}`. For a missing column, a `CheckedRow` raises the subclass
            `MissingColumn`.
    """
    try:
        return PromptFormatter().vformat(template, (), row)
    except (IndexError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            f"user_prompt has a field that a row cannot fill: {error}. For example, "
            "{choices[4]} needs at least five entries in the column `choices`. Change or remove "
            "the field, or remove the row from the data."
        ) from None


def literal(text: str) -> str:
    """Escape a string for use in a template by doubling its braces."""
    return text.replace("{", "{{").replace("}", "}}")


def is_field_name(name: str) -> bool:
    """Return whether a template can contain a column or key of this name in braces.

    It cannot if the name is empty or a number, or contains one of the characters `.[{}!:`, which
    are syntax in a format string.
    """
    return bool(name) and not name.isdecimal() and not set(name) & set(".[{}!:")
