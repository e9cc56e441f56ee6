"""Find the layout, token limit per micro-batch and checkpointing that train fastest."""

from collections.abc import Iterator

from grpo_ext.bench.measure import Bench, Measurement, Settings
from grpo_ext.recipe.folder import sharding

Key = tuple[tuple[str, object], ...]  # the items of settings

LAYOUTS = ("chunks", "packed", "padded")
# Timings are noisy: settings within this factor of the fastest are measured two more times.
CLOSE = 1.5
# Other settings replace the recipe's only if they take less than this share of its time.
WORTHWHILE = 0.97


class Search:
    """Measures settings of one recipe, and keeps the fastest measurement of each.

    Attributes:
        measurements: the measurements by the items of their settings; `None` for settings that did
            not run.
        refused: layouts that the model does not support, each with the reason.
    """

    def __init__(self, bench: Bench):
        self.bench = bench
        self.measurements: dict[Key, Measurement | None] = {}
        self.refused: dict[str, str] = {}

    def run(self) -> Iterator[tuple[Settings, Measurement | None]]:
        """Yield settings, each with its measurement, or `None` if they could not run.

        The recipe's own settings come first, then each layout, then token limits with the fastest
        layout, then, if the recipe uses gradient checkpointing, the fastest settings without it.
        Finally, all settings within `CLOSE` of the fastest are measured two more times; nothing is
        yielded for that.

        Raises:
            ValueError: if no layout fits into memory.
        """
        checkpointing = self.own["gradient_checkpointing"]
        yield self.own, self.measure(self.own)
        for layout in LAYOUTS:
            settings = {
                "layout": layout,
                "max_tokens_per_micro_batch": None,
                "gradient_checkpointing": checkpointing,
            }
            yield settings, self.measure(settings)
        if not self._fastest_other():
            raise ValueError(
                "No layout fits into memory: write a smaller num_generations or "
                "max_completion_length."
            )
        for budget in token_budgets(self.bench.sequence_lengths):
            settings = {**self._fastest_other(), "max_tokens_per_micro_batch": budget}
            if settings["layout"] != "padded":  # recipes refuse a budget there
                yield settings, self.measure(settings)
        if checkpointing:
            settings = {**self._fastest_other(), "gradient_checkpointing": False}
            yield settings, self.measure(settings)
        self._measure_close_ones_again()

    def measure(self, settings: Settings, again: bool = False) -> Measurement | None:
        """Measure settings and return their fastest measurement; `None` if they cannot run.

        Settings that have a measurement are run again only if `again` is set.
        """
        key = tuple(settings.items())
        previous = self.measurements.get(key)
        if previous is not None and not again:
            return previous
        try:
            measurement = self.bench.training_phase(settings)
        except ValueError as error:
            self.refused[settings["layout"]] = str(error)
            measurement = None
        if measurement is None or (previous and previous.seconds < measurement.seconds):
            measurement = previous
        self.measurements[key] = measurement
        return measurement

    def _measure_close_ones_again(self) -> None:
        first = self._seconds()
        limit = CLOSE * min(first.values())
        for _ in range(2):
            for key, seconds in first.items():
                if seconds < limit:
                    self.measure(dict(key), again=True)

    @property
    def own(self) -> Settings:
        """The recipe's settings, with its micro-batch size fitted to `bench.num_completions`."""
        recipe = self.bench.recipe.flat
        num_completions = self.bench.num_completions
        size = largest_divisor(num_completions, self.bench.batch.per_device_train_batch_size)
        return {
            "layout": recipe["layout"],
            "max_tokens_per_micro_batch": recipe["max_tokens_per_micro_batch"],
            "gradient_checkpointing": recipe["gradient_checkpointing"],
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": num_completions // size,
        }

    @property
    def best(self) -> Settings:
        """The fastest settings, or the recipe's if they are almost as fast; empty if none ran."""
        seconds = self._seconds()
        own_seconds = seconds.get(tuple(self.own.items()))
        other = self._fastest_other()
        if own_seconds is None:
            return other
        if not other or WORTHWHILE * own_seconds <= seconds[tuple(other.items())]:
            return self.own
        return other

    def _fastest_other(self) -> Settings:
        """Return the fastest settings other than the recipe's; empty if none ran."""
        seconds = self._seconds()
        seconds.pop(tuple(self.own.items()), None)
        if not seconds:
            return {}
        fastest = min(seconds, key=seconds.__getitem__)
        return dict(fastest)

    def _seconds(self) -> dict[Key, float]:
        """Return the seconds of all settings that ran."""
        seconds = {}
        for key, measurement in self.measurements.items():
            if measurement is not None:
                seconds[key] = measurement.seconds
        return seconds

    def lines(self) -> Settings:
        """Return the best settings as recipe keys; empty if the recipe's own settings are the best.

        They change neither the completions per step nor those per generation.
        """
        best = self.best
        if best == self.own:
            return {}
        batch = self.bench.batch
        lengths = self.bench.sequence_lengths
        num_completions = batch.completions_per_step // batch.num_processes
        budget = best["max_tokens_per_micro_batch"]
        if budget is None and len(lengths) < num_completions:
            budget = sum(lengths)  # the size of the one micro-batch that was measured
        lines = {"layout": best["layout"]}
        if best["layout"] == "padded" or sharding(self.bench.recipe.flat):
            # No token limit here, so convert it to a number of rows of mean length.
            affordable = (budget or sum(lengths)) * len(lengths) / sum(lengths)
            size = largest_divisor(num_completions, int(affordable))
        else:
            size = num_completions
            lines["max_tokens_per_micro_batch"] = budget
        micro_batches = num_completions // size
        lines["per_device_train_batch_size"] = size
        lines["gradient_accumulation_steps"] = micro_batches
        if batch.slices != batch.gradient_accumulation_steps:
            lines["steps_per_generation"] = (
                batch.slices * micro_batches // batch.gradient_accumulation_steps
            )
        lines["gradient_checkpointing"] = best["gradient_checkpointing"]
        return lines


def fastest_settings(config: str) -> Settings:
    """Measure a recipe on this machine like `grpo-ext bench`, and return `Search.lines`."""
    bench = Bench(config, [])
    bench.as_it_stands()
    search = Search(bench)
    for _ in search.run():
        pass
    return search.lines()


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of `number` that is at most `most`; 1 if `most` is below 1."""
    size = max(1, min(number, most))
    while number % size:
        size -= 1
    return size


def token_budgets(lengths: list[int]) -> list[int]:
    """Return the three largest powers of 2 (or fewer) between the longest length and the sum."""
    budgets = []
    for exponent in range(24):
        if max(lengths) < 2**exponent < sum(lengths):
            budgets.append(2**exponent)
    return budgets[-3:]
