"""Write `docs/api/private-names.md`: what this package relies on in TRL and transformers.

`make names` runs it. Everything is read from `grpo_ext.seams.contract` and `grpo_ext.seams.port`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from grpo_ext.seams import contract
from grpo_ext.seams.port import TransformersTrainer, TRLTrainer
from tests.support.places import REPO

PAGE = REPO / "docs" / "api" / "private-names.md"
PACKAGE = Path(contract.__file__).parents[1]
INTRODUCTION = f"""# Private names of TRL and transformers

TRL changes its trainer often and guarantees no private name. This page lists what the package \
relies on in TRL {contract.KNOWN} and transformers, and what it says when that changes. \
`make names` writes the page from `grpo_ext/seams`.

A new trainer compares the installed versions with this list before a model is loaded. If anything \
differs, it raises a `RuntimeError` with every difference and the versions to install. If a name \
is gone that the package imports, importing the trainer raises the same error. The package \
installs TRL {contract.KNOWN} only. With another version, the first difference is "TRL is 1.17.0, \
and this package is written for {contract.KNOWN}".

Classes that transformers documents, such as `DynamicCache`, are not listed. Where `fast_generate` \
cannot decode, for example because transformers gives models an input with a new name, \
transformers decodes instead. The run says so before its first step, with the reason and what to \
change.
"""


def page() -> str:
    """Return the whole page."""
    contents = contract.CONTRACT
    methods = contract.expected_methods()
    fields = ", ".join(f"`{name}`" for name in contents["config_fields"])
    sections = [
        section("Names", "`PATH no longer exists`", [f"- `{path}`" for path in contents["names"]]),
        section(
            "Methods",
            "`PATH no longer exists`, or `PATH: expected parameters [...], found [...]`",
            table("method | first parameters", methods),
        ),
        section(
            "Attributes of the trainer that are private",
            "``GRPOTrainer.__init__ no longer sets `self.NAME` ``, or "
            "``Trainer no longer sets `self.NAME` ``",
            table("attribute | read in", {name: readers(name) for name in attributes("_")}),
        ),
        section(
            "Attributes of the trainer that are public",
            "as above",
            [", ".join(f"`{name}`" for name in attributes())],
        ),
        section(
            "Code that a function must contain",
            "``PATH no longer has `CODE` ``",
            table("function | code", contents["code"]),
        ),
        section(
            "Fields of `GRPOConfig`", "``GRPOConfig no longer has the field `NAME` ``", [fields]
        ),
    ]
    return "\n".join([INTRODUCTION, *sections])


def attributes(prefix: str = "") -> list[str]:
    """Return the attributes that we read; the private ones for the prefix `_`, else the others."""
    return [
        name
        for port in (TRLTrainer, TransformersTrainer)
        for name in port.__annotations__
        if name.startswith("_") == bool(prefix)
    ]


def readers(name: str) -> list[str]:
    """Return the files of the package that read an attribute of the trainer."""
    pattern = re.compile(rf"\btrainer\.{name}\b")
    return [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if pattern.search(path.read_text(encoding="utf-8"))
    ]


def table(head: str, rows: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the lines of a table with a key and a list in each row."""
    lines = [f"| {head} |", "|---|---|"]
    for key, parts in rows.items():
        cell = ", ".join(f"`{part.strip()}`" for part in parts)
        lines.append(f"| `{key}` | {cell} |")
    return lines


def section(title: str, message: str, lines: list[str]) -> str:
    return "\n".join([f"## {title}", "", f"If one changes: {message}.", "", *lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
