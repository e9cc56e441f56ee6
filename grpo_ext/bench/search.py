"""The fastest settings of the training phase: the recipe's, other layouts, micro-batches in tokens, without checkpointing."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from grpo_ext.bench.measure import Bench, Measured
from grpo_ext.recipe.folder import sharding

LAYOUTS = ("chunks", "packed", "padded")
CLOSE = 1.5  # settings whose seconds are within this factor of the best are measured again, as machines are noisy
WORTH = 0.97  # other settings must take less than this share of the recipe's seconds


@dataclass
class Search:
    """Measures settings, each once, and those close to the best twice more; the fastest measurement counts."""

    bench: Bench
    found: dict[tuple[tuple[str, Any], ...], Measured | None] = field(default_factory=dict)
    refused: dict[str, str] = field(
        default_factory=dict
    )  # layouts that do not go with the model, and why

    def measure(self, settings: dict[str, Any], again: bool = False) -> Measured | None:
        """Return the measurement of settings; `None` if they take too much memory, or the model cannot take the layout."""
        key = tuple(settings.items())
        if (before := self.found.get(key)) is not None and not again:
            return before
        try:
            new = self.bench.training_phase(settings)
        except ValueError as error:
            self.refused[settings["layout"]], new = (
                str(error).partition(": ")[2] or str(error),
                None,
            )
        self.found[key] = min(
            (x for x in (before, new) if x), key=lambda x: x.seconds, default=None
        )
        return self.found[key]

    def __call__(self) -> Iterator[tuple[dict[str, Any], Measured | None]]:
        """Yield settings and their measurement, as they are measured."""
        checkpointing = self.own["gradient_checkpointing"]
        yield self.own, self.measure(self.own)
        first = {
            "layout": "auto",
            "max_tokens_per_micro_batch": None,
            "gradient_checkpointing": checkpointing,
        }
        stages: list[list[dict[str, Any]]] = [
            [{**first, "layout": layout} for layout in LAYOUTS],
            [{"max_tokens_per_micro_batch": budget} for budget in budgets(self.bench.tokens)],
            [{"gradient_checkpointing": False}] if checkpointing else [],
        ]
        for i, stage in enumerate(stages):
            for change in stage:
                settings = {**(self._fastest(own=False) if i else first), **change}
                if settings["layout"] == "padded" and settings["max_tokens_per_micro_batch"]:
                    continue  # which the recipe's checks refuse
                yield settings, self.measure(settings)
            if not self._fastest(own=False):
                raise ValueError(
                    "No layout fits into memory: write a smaller num_generations or max_completion_length."
                )
        least = self.found[tuple(self.best.items())].seconds  # type: ignore[union-attr]
        for key in 2 * [
            key for key, value in self.found.items() if value and value.seconds < CLOSE * least
        ]:
            self.measure(dict(key), again=True)

    @property
    def own(self) -> dict[str, Any]:
        """The settings of the recipe, for the completions that are measured."""
        flat, rows = self.bench.recipe.flat, self.bench.rows
        size = largest_divisor(rows, self.bench.batch.per_device_train_batch_size)
        keys = "layout", "max_tokens_per_micro_batch", "gradient_checkpointing"
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": rows // size}
        return {**{key: flat[key] for key in keys}, **sizes}

    @property
    def best(self) -> dict[str, Any]:
        """The fastest settings so far; the recipe's, if others are hardly faster; empty if none could run."""
        return self._fastest(own=True)

    def _fastest(self, own: bool) -> dict[str, Any]:
        key = tuple(self.own.items())
        done = [
            (x.seconds * (WORTH if k == key else 1), k)
            for k, x in self.found.items()
            if x and (own or k != key)
        ]
        return dict(min(done, key=itemgetter(0))[1]) if done else {}

    def lines(self) -> dict[str, Any]:
        """Return the keys of a recipe that take the fastest settings, with the same completions in each step and generation.

        They are empty if the recipe's own settings are the fastest.
        """
        if self.best == self.own:
            return {}
        batch, best, tokens = self.bench.batch, self.best, self.bench.tokens
        rows, found = batch.completions_per_step // batch.num_processes, {"layout": best["layout"]}
        budget = best["max_tokens_per_micro_batch"] or (sum(tokens) if len(tokens) < rows else None)
        if best["layout"] == "padded" or sharding(
            self.bench.recipe.flat
        ):  # no budget by tokens there
            size = largest_divisor(rows, int((budget or sum(tokens)) / (sum(tokens) / len(tokens))))
        else:
            size = rows
            found["max_tokens_per_micro_batch"] = budget
        found |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": rows // size}
        if batch.slices != batch.gradient_accumulation_steps:
            found["steps_per_generation"] = (
                batch.slices * rows // size // batch.gradient_accumulation_steps
            )
        return {**found, "gradient_checkpointing": best["gradient_checkpointing"]}


def fastest_settings(config: str) -> dict[str, Any]:
    """Measure a recipe on this machine as `grpo-ext bench` does, and return `Search.lines`."""
    bench = Bench(config, [])
    bench.as_it_stands()
    search = Search(bench)
    list(search())
    return search.lines()


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number up to `most`, at least 1."""
    return max(n for n in range(1, number + 1) if number % n == 0 and n <= max(1, most))


def budgets(tokens: list[int]) -> list[int]:
    """Return limits of a micro-batch in tokens: the three largest powers of 2 between the longest row and all rows."""
    return [size for size in (2**k for k in range(24)) if max(tokens) < size < sum(tokens)][-3:]
