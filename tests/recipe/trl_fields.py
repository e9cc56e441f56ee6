"""Write `grpo_ext/recipe/trl_fields.py`: the fields of TRL's dataclasses that are recipe keys.

`make fields` runs it. The file has the fields of the installed versions, with types, choices and
defaults, in classes of the same names that derive from each other as TRL's do.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import types
import typing
from enum import Enum
from typing import Any

from trl import GRPOConfig, ModelConfig, ScriptArguments, SFTConfig

from grpo_ext.recipe.fields import CHOICES, choices_of, default_of
from tests.support.places import REPO

FILE = REPO / "grpo_ext" / "recipe" / "trl_fields.py"
# versions whose fields are the same; `make newest` tests the newest of transformers
VERSIONS = {"trl": ["1.16.0"], "transformers": ["5.23.0", "5.24.0"]}
CLASSES = (ScriptArguments, ModelConfig, GRPOConfig, SFTConfig)
HEAD = '''"""The fields of TRL's dataclasses that are recipe keys: types, choices and defaults.

`make fields` writes this file. If the installed versions are in `VERSIONS`, recipes are read and
checked against it, which avoids the slow imports of TRL, transformers and torch. Recipes that set
`parallelism_config` still import them. The classes only list fields: do not instantiate them.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal
'''


def source() -> str:
    """Return the source of the file."""
    classes: list[type] = []
    for cls in CLASSES:
        classes += [base for base in cls.__mro__[-2::-1] if base not in classes]
    named: dict[str, type] = {}  # the classes that are types of fields
    mirrors = [mirror(cls, named) for cls in classes]
    kinds = [kind(cls) for cls in named.values()]
    text = "\n\n\n".join([f"{HEAD}\nVERSIONS = {VERSIONS!r}", *kinds, *mirrors])
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", FILE.name, "-"]
    formatted = subprocess.run(command, input=text, capture_output=True, text=True, cwd=REPO)
    assert formatted.returncode == 0, formatted.stderr
    return formatted.stdout


def mirror(cls: type, named: dict[str, type]) -> str:
    """Return the source of a dataclass with the fields that `cls` adds to its base.

    Args:
        cls: a dataclass of TRL or transformers.
        named: gets the classes that are types of its fields.
    """
    assert cls.__base__ is not None
    base = "" if cls.__base__ is object else f"({cls.__base__.__name__.lstrip('_')})"
    hints = typing.get_type_hints(cls, include_extras=True)
    lines = [
        "@dataclass(init=False, repr=False, eq=False)",
        f"class {cls.__name__.lstrip('_')}{base}:",
    ]
    for f in dataclasses.fields(cls):
        if f.name in vars(cls)["__annotations__"]:
            lines.append(f"    {f.name}: {declared(f, hints[f.name], named)}")
    return "\n".join(lines)


def declared(f: dataclasses.Field, hint: Any, named: dict[str, type]) -> str:
    """Return the type and the default of a field as source."""
    choices = () if f.name in CHOICES else choices_of(f, hint)
    default = default_of(f)
    if choices:
        null = " | None" if type(None) in typing.get_args(hint) else ""
        return f"str{null} = field(default={default!r}, metadata={{'choices': {choices!r}}})"
    if isinstance(default, list):
        assert default == []
        return f"{written(hint, named)} = field(default_factory=list)"
    return f"{written(hint, named)} = {default!r}"


def written(hint: Any, named: dict[str, type]) -> str:
    """Return a type as source, and add the classes in it to `named`."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is type(None):
        return "None"
    if hint is Any:
        return "Any"
    if origin is typing.Literal:
        return f"Literal{list(arguments)!r}"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(written(argument, named) for argument in arguments)
    if origin is not None:
        inner = ", ".join(written(argument, named) for argument in arguments)
        return f"{origin.__name__}[{inner}]"
    if hint.__module__ != "builtins":
        named[hint.__name__] = hint
    return hint.__name__


def kind(cls: type) -> str:
    """Return the source of a class that is the type of a field."""
    if not issubclass(cls, Enum):
        return f'class {cls.__name__}:\n    """Its fields are not listed."""'
    members = [f"    {member.name} = {member.value!r}" for member in cls]
    return "\n".join([f"class {cls.__name__}(StrEnum):", *members])


if __name__ == "__main__":
    FILE.write_text(source(), encoding="utf-8")
    print(FILE)
