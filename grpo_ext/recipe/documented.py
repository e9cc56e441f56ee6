"""The `help` of a dataclass's fields, taken from its docstring, so that each option is described in one place."""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import MappingProxyType
from typing import TypeVar

Class = TypeVar("Class", bound=type)
# `name, name (type, defaults to value): text`, four spaces in; the text goes on in deeper lines
ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*) \([^)]*\): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def documented(cls: Class) -> Class:
    """Class decorator above `@dataclass`: a field's entry under `Args:`, of the class or of a base of ours, becomes its `help`,
    which argument parsers show."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    docs = [inspect.cleandoc(base.__doc__ or "") for base in cls.__mro__ if base.__module__.startswith("grpo_ext.")]
    for names, text in ENTRY.findall("\n".join(docs)):
        # argparse reads a single % as the start of a placeholder
        help_text = " ".join(text.split()).replace("%", "%%")
        for name in names.split(", "):
            fields[name].metadata = MappingProxyType({**fields[name].metadata, "help": help_text})
    return cls
