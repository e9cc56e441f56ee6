"""Published settings of three experiments, and how the recipes of the package differ from them.

After a change to `data/published.yaml`, run `python -m grpo_ext.reproduce.published` to update the
tables in docs/experiments.md.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_ext.common.files import data_yaml, write_atomically

Status = Literal["stated", "tool_default", "not_published"]


@dataclass(frozen=True)
class PublishedValue:
    """The value of one recipe key in a publication, and in the recipe."""

    key: str
    status: Status
    published: Any  # `None` for a value that was not published
    tool: str | None  # the tool that has `published` as its default, with its versions
    differs: bool  # whether the recipe has a different value
    in_recipe: Any  # the value in the recipe
    reason: str | None  # why the recipe differs


@dataclass(frozen=True)
class Experiment:
    """A published experiment, and how the package's recipe for it differs."""

    name: str
    recipe: str  # the value for `grpo-ext train --config`
    publication: str
    values: dict[str, PublishedValue]
    # differences that do not belong to a key: `what`, `published`, `ours`, `reason`
    beyond: list[dict[str, str]]


def experiments() -> dict[str, Experiment]:
    """Load the experiments in `data/published.yaml`, and return them by name."""
    contents = data_yaml("grpo_ext.reproduce", "published.yaml")
    experiments = {}
    for name, content in contents.items():
        values = {}
        for key, entry in content["values"].items():
            values[key] = PublishedValue(
                key=key,
                status=entry["status"],
                published=entry.get("published"),
                tool=entry.get("tool"),
                differs="ours" in entry,
                in_recipe=entry.get("ours", entry.get("published")),
                reason=entry.get("reason"),
            )
        experiments[name] = Experiment(
            name,
            content["recipe"],
            content["publication"],
            values,
            content["beyond"],
        )
    return experiments


def differences_table(experiment: Experiment) -> str:
    """Return a Markdown table of the recipe's differences from published values, with reasons.

    Differences that do not belong to a recipe key come last.
    """
    lines = ["| | published | here | why |", "|---|---|---|---|"]
    for value in experiment.values.values():
        if value.differs and value.status != "not_published":
            origin = f" ({value.tool})" if value.tool else ""
            published = f"`{_cell(value.published)}`{origin}"
            lines.append(
                f"| `{value.key}` | {published} | `{_cell(value.in_recipe)}` | {value.reason} |"
            )
    for row in experiment.beyond:
        lines.append(f"| {row['what']} | {row['published']} | {row['ours']} | {row['reason']} |")
    return "\n".join(lines)


def unpublished_table(experiment: Experiment) -> str:
    """Return a Markdown table of the recipe keys whose values were not published, with reasons."""
    lines = ["| | here | why |", "|---|---|---|"]
    for value in experiment.values.values():
        if value.status == "not_published":
            lines.append(f"| `{value.key}` | `{_cell(value.in_recipe)}` | {value.reason} |")
    return "\n".join(lines)


def defaults_sentence(experiment: Experiment) -> str:
    """Return a sentence that lists the recipe values that are defaults of the original tools."""
    by_tool: dict[str, list[str]] = {}
    for value in experiment.values.values():
        if value.tool and not value.differs:
            default = f"`{value.key}: {_cell(value.published)}`"
            by_tool.setdefault(value.tool, []).append(default)
    parts = []
    for tool, defaults in by_tool.items():
        parts.append(f"{', '.join(defaults)} ({tool})")
    return f"Not stated, but defaults of the tool that was used: {'; '.join(parts)}."


def _cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def with_tables(page: str) -> str:
    """Return `page`, the text of docs/experiments.md, with its tables regenerated.

    Each table is delimited by `<!-- NAME: KIND -->` and `<!-- end -->`, where NAME is an experiment
    and KIND is "differences", "defaults" (a sentence) or "unpublished".
    """
    writers = {
        "differences": differences_table,
        "defaults": defaults_sentence,
        "unpublished": unpublished_table,
    }
    by_name = experiments()

    def with_table(match: re.Match[str]) -> str:
        name = match["name"]
        kind = match["kind"]
        table = writers[kind](by_name[name])
        return f"<!-- {name}: {kind} -->\n{table}\n<!-- end -->"

    pattern = r"<!-- (?P<name>\w+): (?P<kind>\w+) -->\n.*?<!-- end -->"
    return re.sub(pattern, with_table, page, flags=re.DOTALL)


if __name__ == "__main__":
    page = Path("docs/experiments.md")
    write_atomically(page, with_tables(page.read_text(encoding="utf-8")))
