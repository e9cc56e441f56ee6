"""Write `docs/keys-of-others.md`: the keys of other packages, and what `migrate` makes of them.

`make keys` runs it. The keys are those of `recipe/data/foreign.yaml`; some are translated by the
files of `grpo_ext/migrate`, which name them.
"""

from __future__ import annotations

import ast

from grpo_ext.migrate.draft import recipe_hints
from grpo_ext.migrate.recipe_text import yaml_line
from grpo_ext.migrate.rewards import REWARDS
from grpo_ext.migrate.translate import REMOVE
from grpo_ext.recipe.foreign import FOREIGN, TRANSLATIONS
from tests.support.places import REPO

PAGE = REPO / "docs" / "keys-of-others.md"
MIGRATED = ("open-r1", "ms-swift", "verl", "older TRL")
INTRODUCTION = """# Keys of other packages

A recipe with one of these keys is refused with this advice. `grpo-ext migrate` writes what the last column says: the key that takes
the value, or what it writes for a value; "translated" stands where several settings are read together
([coming from](coming-from.md)). Otherwise it leaves the key out, or remarks on it, in the recipe and on the terminal.

Of a nested key such as `actor_rollout_ref.rollout.n`, the table has the last parts; `critic.*` is a section. Keys that a recipe has,
too, are taken over. `make keys` writes this page.
"""  # noqa: E501


def named_in_code() -> set[str]:
    """Return the texts in the files of `grpo_ext/migrate`, and the options of rewards."""
    texts: set[str] = set()
    for name in ("trl", "swift", "verl"):
        path = REPO / "grpo_ext" / "migrate" / f"{name}.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value.rpartition(".")[2])
    for table in REWARDS.values():
        for info in table.values():
            texts |= {option[0] for option in info.get("options", {}).values()}
    return texts


def migrated(key: str, named: set[str]) -> str:
    """Return what `migrate` does with a key."""
    rule = TRANSLATIONS.get(key, FOREIGN[key][1])
    if isinstance(rule, dict):
        cells = []
        for value, written in rule.items():
            shown = "any other" if value == "*" else f"`{yaml_line(value)}`"
            keys = written if isinstance(written, dict) else {written: "..."}
            settings = ", ".join(f"`{name}: {yaml_line(to)}`" for name, to in keys.items())
            cells.append(f"{shown}: {settings or 'nothing'}")
        return "; ".join(cells)
    if rule in recipe_hints():
        return f"`{rule}`"
    if key.rpartition(".")[2] in named:
        return "translated"
    return "left out" if rule.startswith(REMOVE) else "a remark"


def page() -> str:
    """Return the page."""
    named = named_in_code()
    by_origin: dict[str, list[str]] = {}
    for key, (origins, _) in FOREIGN.items():
        for origin in origins.split(", "):
            by_origin.setdefault(origin, []).append(key)
    lines = [INTRODUCTION]
    for origin in sorted(by_origin, key=lambda name: (name not in MIGRATED, name.lower())):
        lines += [f"## {origin}", ""]
        is_migrated = origin in MIGRATED
        lines += ["| key | write | `migrate` |" if is_migrated else "| key | write |"]
        lines += ["|---|---|---|" if is_migrated else "|---|---|"]
        for key in sorted(by_origin[origin]):
            line = f"| `{key}` | {FOREIGN[key][1].replace('|', chr(92) + '|')} |"
            lines.append(f"{line} {migrated(key, named)} |" if is_migrated else line)
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(REPO)} is written.")
