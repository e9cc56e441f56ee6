"""Every pair of options that change the loss, the advantages, the groups or the sampler: exact,
refused or noted.

    python -m tests.hunt.pairs      # writes docs/options-that-meet.md

The checks of a run say which pairs are refused or noted. A pair that they accept is exact if the
fuzzer draws both options, and so compares gradients with the formulas (see `hunt_trainer`).
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar
from trl import ModelConfig

from grpo_ext.recipe.notes import GRPO_NOTES, notes_of
from grpo_ext.recipe.rules import Values, flat_values
from grpo_ext.recipe.schema import GRPOExtConfig, RunConfig
from tests.support.options import NOT_DRAWN, VALUES, Settings, refusal, with_option
from tests.support.places import REPO
from tests.support.scripted_run import build_start, make_trainer

PAGE = REPO / "docs" / "options-that-meet.md"
BASE: Settings = {"per_device_train_batch_size": 8, "num_generations": 2}
EXACT = "exact"
SOME = "some refused"
REFUSED = "refused"
NOTED = "noted"
LAST = "last"  # stands for the name of the last reward in `VALUES`
SIGNS = {EXACT: ".", SOME: "/", REFUSED: "x", NOTED: "o"}
SCHEMA = {"training": GRPOExtConfig, "run": RunConfig, "model": ModelConfig}
DEFAULTS = flat_values({}, SCHEMA).defaults
# Options that a trainer checks only when it starts, with its model, sampler and data.
AT_THE_START = (
    *("behaviour_policy", "beta", "environment", "generation_kwargs", "layout", "logprob_policy"),
    *(
        "max_tokens_per_micro_batch",
        "overlap",
        "partial_rollouts",
        "sampler",
        "top_entropy_quantile",
    ),
    *("top_k", "use_transformers_continuous_batching", "use_vllm"),
)


def options() -> list[str]:
    """Return the options of the table, in its order."""
    return [*VALUES, *NOT_DRAWN]


def values_of(option: str) -> tuple[Any, ...]:
    """Return the values of an option that differ from its default."""
    return VALUES[option] if option in VALUES else (NOT_DRAWN[option][0],)


@dataclass
class Pair:
    """Two options, and what the checks say of the combinations of their values."""

    first: str
    second: str
    exact: int = 0  #: combinations that are accepted without a note
    refused: dict[str, str] = field(default_factory=dict)  #: the message, by combination
    noted: dict[str, str] = field(default_factory=dict)  #: likewise

    @property
    def status(self) -> str:
        """Return one of the keys of `SIGNS`."""
        if self.refused and not self.exact and not self.noted:
            return REFUSED
        if self.refused:
            return SOME
        return EXACT if self.exact else NOTED


def notes(settings: Settings) -> set[str]:
    """Return what the recipe of these settings is told without being refused."""
    given = {name: value for name, value in settings.items() if name != "rewards"}
    return {note.message for note in notes_of(Values(given, DEFAULTS), GRPO_NOTES, 1)}


def alone(option: str) -> dict[str, set[str]]:
    """Return what is said of each value of an option by itself."""
    return {str(value): notes(with_option(BASE, option, value)) for value in values_of(option)}


@functools.cache
def model_folder() -> tempfile.TemporaryDirectory:
    """A folder with a model, as long as this process lives."""
    folder = tempfile.TemporaryDirectory(prefix="grpo_ext-pairs-")
    build_start(Path(folder.name) / "model")
    return folder


def refused_at_start(settings: Settings) -> str | None:
    """Return why a trainer with these settings does not start; `None` if it does."""
    folder = Path(model_folder().name)
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            make_trainer(folder / "model", folder / "out", {"rewards": "two", **settings})
        except ValueError as error:
            return str(error)
    return None


def why_refused(pair: Pair, settings: Settings) -> str | None:
    """Return why two options with these settings are refused; `None` if they are not.

    A trainer is made until one combination of the pair starts.
    """
    why = refusal(settings)
    checked_late = pair.first in AT_THE_START and pair.second in AT_THE_START
    if why is None and checked_late and not (pair.exact or pair.noted):
        why = refused_at_start(settings)
    return why


def pairs() -> Iterator[Pair]:
    """Yield all pairs of options with what the checks say of them."""
    known = {option: alone(option) for option in options()}
    for first, second in combinations(options(), 2):
        pair = Pair(first, second)
        for a in values_of(first):
            for b in values_of(second):
                settings = with_option(with_option(BASE, first, a), second, b)
                combination = " and ".join(
                    f"`{name}: {written(tried(settings, name, value))}`"
                    for name, value in ((first, a), (second, b))
                )
                new = notes(settings) - known[first][str(a)] - known[second][str(b)]
                elsewhere = [name for name in (first, second) if name in NOT_DRAWN]
                if why := why_refused(pair, settings):
                    pair.refused[combination] = why.splitlines()[0]
                elif new or elsewhere:
                    pair.noted[combination] = min(new) if new else NOT_DRAWN[elsewhere[-1]][1]
                else:
                    pair.exact += 1
        yield pair


def tried(settings: Settings, option: str, value: Any) -> Any:
    """Return the value that an option has in the settings; `with_option` replaces `LAST`."""
    return settings[option] if value == LAST else value


def written(value: Any) -> str:
    """Return a value as a recipe has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(entry)}" for key, entry in value.items()) + "}"
    return str(list(value)) if isinstance(value, tuple) else str(value)


def page() -> str:
    """Return the page with the table."""
    names = options()
    table = {(pair.first, pair.second): pair for pair in pairs()}
    count = Counter(pair.status for pair in table.values())
    width = max(map(len, names))
    rows = []
    for i, name in enumerate(names):
        signs = "".join(SIGNS[table[other, name].status] for other in names[:i])
        rows.append(f"{name:{width}} {signs}".rstrip())
    return INTRODUCTION.format(
        options=len(names),
        pairs=len(table),
        exact=count[EXACT],
        some=count[SOME],
        refused=count[REFUSED],
        noted=count[NOTED],
        table="\n".join(rows),
        refusals=by_message([pair.refused for pair in table.values()]),
        notes=by_message([pair.noted for pair in table.values()]),
    )


def by_message(said: list[dict[str, str]]) -> str:
    """Return the lines of a list of messages, each with the first of the combinations that it is
    said of.
    """
    combinations_of: dict[str, list[str]] = {}
    for of_pair in said:
        for combination, message in of_pair.items():
            combinations_of.setdefault(message, []).append(combination)
    lines = []
    for message, found in sorted(combinations_of.items()):
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        lines.append(f"- {found[0]}{more}: {message}")
    return "\n".join(lines)


INTRODUCTION = """# Options that meet

This page shows which options can be combined. It covers all {pairs} pairs of the {options} \
options that change the loss, the advantages,
the groups or the sampler. `make pairs` generates it from the options and from the checks of a \
run; a test fails if an option is
missing. Each option is tried with one or more values that differ from its default, together with \
whatever it needs to have an effect.
For example, `sapo_temperature_pos` is tried with `loss_type: sapo`. `shaped` and \
`tests.support.scripted_run:Letters` are a reward and
an environment of the tests. Each pair has one of these signs:

| sign | pairs | meaning |
|---|---|---|
| `.` | {exact} | exact: `make hunt` draws both options and compares the gradients of whole runs \
with the formulas |
| `/` | {some} | some combinations of values are refused; the others are exact or noted |
| `x` | {refused} | all combinations are refused before training begins, with a message that names \
the options |
| `o` | {noted} | noted: a check comments on the pair, for example because one of the two options \
has no effect, or because an option is tested in another way |

```text
{table}
```

The columns have the options in the same order as the rows, so the sign of a pair is in the row of \
the lower option.

## Refusals

Each line has the first combination with a message, the number of other combinations with the same \
message, and the message.

{refusals}

## Notes

These lines are built in the same way. Lines that name a test are for options that the test, \
instead of `make hunt`, covers.

{notes}
"""


def main() -> None:
    """Write the page."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    disable_progress_bar()
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(REPO)} is written.")


if __name__ == "__main__":
    main()
