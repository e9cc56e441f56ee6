"""Every pair of options that change the loss, the advantages, the groups or the sampler: exact, refused or noted.

    python tests/hunt/pairs.py        # writes docs/options-that-meet.md

A pair is refused or noted by the checks of a run themselves, and exact if the fuzzer draws it (see `hunt_trainer`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(Path(__file__).parent)]

from options import NOT_DRAWN, VALUES, Settings, refusal, with_option  # noqa: E402

from grpo_ext.recipe.needs import idle_keys, unclipped, unread  # noqa: E402
from grpo_ext.recipe.rules import Values, flat_values  # noqa: E402
from grpo_ext.recipe.schema import GRPOExtConfig  # noqa: E402

PAGE = REPO / "docs" / "options-that-meet.md"
BASE: Settings = {"per_device_train_batch_size": 8, "num_generations": 2}
EXACT, REFUSED, NOTED, SOME = "exact", "refused", "noted", "some refused"
SIGNS = {EXACT: ".", REFUSED: "x", NOTED: "o", SOME: "/"}
ELSEWHERE = {"preset": None}  # keys of a recipe that are no arguments of the trainer
DEFAULTS = ELSEWHERE | flat_values({}, {"training": GRPOExtConfig}).defaults


def options() -> list[str]:
    """Return the options of the table, in its order."""
    return [*VALUES, *NOT_DRAWN]


def values_of(option: str) -> tuple[Any, ...]:
    """Return the values of an option that differ from its default."""
    return VALUES[option] if option in VALUES else (NOT_DRAWN[option][0],)


@dataclass
class Pair:
    """What becomes of two options."""

    first: str
    second: str
    exact: int = 0  # combinations of their values that are accepted without a note
    refused: dict[str, str] = field(default_factory=dict)  # by combination, with the message
    noted: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """Return one of `SIGNS`."""
        if self.refused and not self.exact and not self.noted:
            return REFUSED
        if self.refused:
            return SOME
        return EXACT if self.exact else NOTED


def notes(settings: Settings) -> set[str]:
    """Return what a recipe with these settings is told without being refused."""
    given = {name: value for name, value in settings.items() if name != "rewards"}
    values = Values(given, DEFAULTS)
    problems = [*unread(values, 1), *idle_keys(values), *unclipped(values, 1)]
    return {problem.message for problem in problems}


def pairs() -> Iterator[Pair]:
    """Yield all pairs of options with what the checks say of them."""
    for first, second in combinations(options(), 2):
        pair = Pair(first, second)
        for a in values_of(first):
            for b in values_of(second):
                combination = f"{first}: {written(a)}, {second}: {written(b)}"
                settings = with_option(with_option(BASE, first, a), second, b)
                settings[first] = settings[first] if first in VALUES else a
                if why := refusal(settings):
                    pair.refused[combination] = why
                elif new := notes(settings) - alone(first, a) - alone(second, b):
                    pair.noted[combination] = min(new)
                elif first in NOT_DRAWN or second in NOT_DRAWN:
                    option = second if second in NOT_DRAWN else first
                    pair.noted[combination] = NOT_DRAWN[option][1]
                else:
                    pair.exact += 1
        yield pair


def alone(option: str, value: Any) -> set[str]:
    """Return what is said of an option by itself."""
    return notes(with_option(BASE, option, value))


def written(value: Any) -> str:
    """Return a value as a recipe has it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def page() -> str:
    """Return the page with the table."""
    names = options()
    table = {(pair.first, pair.second): pair for pair in pairs()}
    count = Counter(pair.status for pair in table.values())
    lines = [
        "# Options that meet",
        "",
        "`make pairs` writes this page from the options themselves and from the checks of a run. It has all pairs of the",
        f"{len(names)} options that change the loss, the advantages, the groups or the sampler: {len(table)} pairs.",
        "",
        "| sign | pairs | meaning |",
        "|---|---|---|",
        f"| `.` | {count[EXACT]} | exact: `make hunt` draws the pair and compares gradients with the formulas |",
        f"| `/` | {count[SOME]} | exact, or noted, but for some values that are refused |",
        f"| `x` | {count[REFUSED]} | refused by name before a model is loaded |",
        f"| `o` | {count[NOTED]} | noted: a check says that one of the two does nothing here, or it is tested elsewhere |",
        "",
        "```text",
    ]
    width = max(map(len, names))
    for i, name in enumerate(names):
        row = "".join(SIGNS[table[other, name].status] for other in names[:i])
        lines.append(f"{name:{width}} {row}")
    lines += ["```", "", "The columns are the rows in the same order.", ""]
    lines += ["## Refused", ""]
    lines += listed({why: pair for pair in table.values() for why in pair.refused.values()}, table, "refused")
    lines += ["", "## Noted", ""]
    lines += listed({why: pair for pair in table.values() for why in pair.noted.values()}, table, "noted")
    lines += ["", "## Options that do not count", ""]
    return "\n".join(lines)
