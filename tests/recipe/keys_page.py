"""Write `docs/keys.md`: the keys of a recipe by topic, with defaults and what each does.

`make keys` runs it. Topics, and texts for keys of TRL and transformers, are in `key_topics.yaml`;
the texts of this package's own keys are the first sentences of their docstrings.
"""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml
from trl import GRPOConfig, ModelConfig, ScriptArguments

from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.schema import GRPOExtConfig, RunConfig
from tests.support.places import REPO

PAGE = REPO / "docs" / "keys.md"
TOPICS = Path(__file__).with_name("key_topics.yaml")
INTRODUCTION = """# Keys of a recipe by topic

A recipe is a flat YAML file of these keys; each can also be set on the command line, as in \
`--learning_rate 1e-6`. \
[Rules by key](rules.md) says which values are refused, [the reference](api/options.md) has the \
whole texts, and a message about a key of another package is explained in \
[coming from](coming-from.md). `make keys` writes this page from the code.
"""
OTHERS = """## Other keys of TRL and transformers

These have their usual meaning, as in the documentation of TRL's `GRPOConfig` and `ModelConfig` \
and of transformers' `TrainingArguments`:
"""


def topics() -> list[dict[str, Any]]:
    """Return the topics: `title`, `more` (links) and `keys`, a text or `None` for each key."""
    return yaml.safe_load(TOPICS.read_text(encoding="utf-8"))


@cache
def defaults() -> dict[str, Any]:
    """Return the default of each key of a recipe with `task: prompts`."""
    values = {"model_name_or_path": "m", "task": "prompts", "dataset_name": "rows.jsonl"}
    return dict(load_recipe(None, values).flat.defaults)


def own_keys() -> set[str]:
    """Return the keys that neither TRL nor transformers has."""
    theirs = {f.name for cls in (GRPOConfig, ModelConfig, ScriptArguments) for f in fields(cls)}
    return set(defaults()) - theirs


@cache
def documented() -> dict[str, str]:
    """Return the text of each field in the docstrings of this package's option classes."""
    found: dict[str, str] = {}
    classes = {*GRPOExtConfig.__mro__, *RunConfig.__mro__}
    for cls in classes:
        if not cls.__module__.startswith("grpo_ext"):
            continue
        entries = re.split(r"\n {8}(?=\w[\w, ]* \()", cls.__doc__ or "")
        for entry in entries[1:]:
            names, text = re.match(r"([\w, ]+) \([^\n]*?\): (.*)", entry, re.DOTALL).groups()
            lines = re.split(r"\n\s*\n", text)[0].split()
            for name in names.split(", "):
                found[name] = " ".join(lines)
    return found


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop, with choices as a recipe writes them."""
    sentence = re.split(r"\.(?: |$)", text, maxsplit=1)[0]
    return re.sub(r'`"([^`"]+)"`', r"`\1`", sentence)


@cache
def choices() -> dict[str, tuple[str, ...]]:
    """Return the choices of each field that has some in its type."""
    found = {}
    for cls in (GRPOExtConfig, RunConfig):
        for key, kind in get_type_hints(cls).items():
            literals = [part for part in (kind, *get_args(kind)) if get_origin(part) is Literal]
            if literals:
                found[key] = tuple(str(choice) for choice in get_args(literals[0]))
    return found


def shown(value: Any) -> str:
    """Return a default as a recipe would write it."""
    value = getattr(value, "value", value)
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1:
        return f"`{value:.1f}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, str) and len(value) > 40:
        return "a text"
    return f"`{value}`"


def row(key: str, text: str | None) -> str:
    """Return the row of a key: its name, its default and what it does."""
    meaning = text or first_sentence(documented()[key])
    if text is None and not all(choice in meaning for choice in choices().get(key, ())):
        meaning += ": " + ", ".join(f"`{choice}`" for choice in choices()[key])
    meaning = meaning.replace("|", "\\|")
    return f"| `{key}` | {shown(defaults()[key])} | {meaning} |"


def page() -> str:
    """Return the page."""
    lines = [INTRODUCTION]
    named: set[str] = set()
    for topic in topics():
        lines += [f"## {topic['title']}\n", "| key | default | what it is |", "|---|---|---|"]
        lines += [row(key, text) for key, text in topic["keys"].items()]
        lines += [f"\nMore: {topic['more']}.\n"]
        named |= set(topic["keys"])
    others = sorted(set(defaults()) - named - own_keys())
    lines += [OTHERS, ", ".join(f"`{key}`" for key in others) + ".", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(REPO)} is written.")
