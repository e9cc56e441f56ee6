"""Find the layout, token limit and gradient checkpointing setting that train fastest."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from grpo_ext.bench.budget import MINUTES, Budget, BudgetSpent, interruptible
from grpo_ext.bench.measure import Bench, Measurement, Settings, largest_divisor
from grpo_ext.recipe.folder import sharding
from grpo_ext.recipe.load import load_recipe

Key = tuple[tuple[str, object], ...]  # the items of settings

# Layouts in the order in which they are likely to win, after the one that the trainer has chosen.
# On a CPU, the mask of packed rows is costly for narrow layers; on a GPU, padding takes longest.
LAYOUTS = {"cpu": ("chunks", "padded", "packed"), "cuda": ("chunks", "packed", "padded")}
# Timings are noisy: settings within this factor of the fastest are measured two more times.
CLOSE = 1.5
# Other settings replace the recipe's only if they take less than this share of its time.
WORTHWHILE = 0.97
HEADROOM = 1.1  # another run is assumed to take this many times as long as the quickest so far
# If training takes more than this many times as long as with the next larger token limit, smaller
# limits are assumed to be slower still.
SLOWER = 1.2


class Search:
    """Searches for the settings with which a recipe trains fastest.

    Args:
        bench: measures the settings.
        announce: a function that is called with settings before they are measured.

    Attributes:
        measurements: maps the items of each settings dict that was tried to its fastest
            measurement, or to `None` if the settings could not run.
        refused: maps the items of each settings dict that cannot be used with the recipe to the
            reason.
    """

    def __init__(self, bench: Bench, announce: Callable[[Settings], None] = lambda settings: None):
        self.bench = bench
        self.announce = announce
        self.measurements: dict[Key, Measurement | None] = {}
        self.refused: dict[Key, str] = {}
        self._runs: Counter[Key] = Counter()
        # duration of the shortest run so far, including the start of its trainer
        self._seconds_to_measure = math.inf

    def run(self) -> Iterator[tuple[Settings, Measurement | None]]:
        """Measure the candidates; yield (settings, measurement) for each.

        The measurement is `None` if the settings could not run. Settings come in the order of
        `candidates`. If the first measurement shows that there is time for more completions per
        step, it is repeated with more. Once three settings have run, another candidate is measured
        only if there is time for it and for two repetitions. Finally, as far as time allows, all
        settings within `CLOSE` of the fastest are measured two more times, but are not yielded
        again. The search ends early when the budget of the bench ends.

        Raises:
            ValueError: if no layout can be used or fits into memory.
            KeyboardInterrupt: after Ctrl-C.
        """
        try:
            yield self.own, self._measure_own()
            for settings in self.candidates():
                if tuple(settings.items()) in self.measurements:
                    continue
                if not self._has_time(runs=3 if len(self._seconds()) >= 3 else 1):
                    break
                yield settings, self.measure(settings)
            reasons = self.refused_layouts
            if not self._seconds() and reasons.keys() >= set(LAYOUTS[self.bench.device]):
                raise ValueError(
                    "No layout can be used with this recipe. The reason for `layout: padded` is: "
                    f"{reasons['padded']}"
                )
            if not self._seconds() and not self.not_tried:
                raise ValueError(
                    "No layout that this recipe can use fits into memory. Lower "
                    "num_generations or max_completion_length."
                )
            self._measure_close_ones_again()
        except BudgetSpent:
            return

    def _measure_own(self) -> Measurement | None:
        """Measure the recipe's own settings, and return the measurement.

        If it shows that there is time for more completions per step, it is discarded, and the
        settings are measured again with more.
        """
        self.bench.budget.check()
        measurement = self.measure(self.own)
        if measurement is not None and self.bench.enlarge(measurement):
            self.measurements.clear()
            self._seconds_to_measure = math.inf
            measurement = self.measure(self.own)
        return measurement

    def candidates(self) -> Iterator[Settings]:
        """Yield the settings to measure, beginning with those that are likely to be fastest.

        The recipe's own settings come first, then:

        - one micro-batch in the layout that the recipe's trainer has chosen, unless the recipe's
          own settings are the same
        - if the recipe uses gradient checkpointing, the fastest settings without it
        - token limits with the fastest layout, from the largest down to the first slow one
        - the other layouts, and token limits again if one of them is the fastest
        - the fastest settings with gradient checkpointing switched on or off
        - if nothing has run, token limits with gradient checkpointing

        Gradient checkpointing is switched off only if the activations are expected to fit into
        memory. Each candidate depends on the measurements so far, so the caller should measure it
        before requesting the next one. The same settings may be yielded twice.
        """
        own = self.own
        yield own
        first, *others = self._layouts()
        if not self._repeats_own(first):
            yield layout_settings(first, own["gradient_checkpointing"])
        if own["gradient_checkpointing"]:
            yield from self._other_checkpointing(first)
        yield from self._limits(self._fastest_or(first))
        for layout in others:
            yield layout_settings(layout, self._fastest_or(first)["gradient_checkpointing"])
        yield from self._limits(self._fastest_or(first))
        yield from self._other_checkpointing(first)
        if not self._seconds():  # smaller micro-batches with checkpointing need the least memory
            yield from self._limits(layout_settings(first, True))

    def _layouts(self) -> list[str]:
        """Return the layouts, beginning with the one that the trainer has chosen."""
        layouts = LAYOUTS[self.bench.device]
        return sorted(layouts, key=lambda layout: layout != self.bench.layout)

    def _repeats_own(self, layout: str) -> bool:
        """Return whether the recipe's own settings run one micro-batch with this layout."""
        own = self.own
        if self.bench.layout != layout or own["max_tokens_per_micro_batch"] is not None:
            return False
        layouts = (layout, "auto") if layout == "chunks" else (layout,)
        return own["layout"] in layouts and own["gradient_accumulation_steps"] == 1

    def _fastest_or(self, layout: str) -> Settings:
        """Return the fastest settings other than the recipe's own.

        If no other settings ran, return the `layout_settings` of `layout` with the recipe's own
        gradient checkpointing.
        """
        return self._fastest_other() or layout_settings(layout, self.own["gradient_checkpointing"])

    def _other_checkpointing(self, layout: str) -> Iterator[Settings]:
        """Yield the settings of `_fastest_or(layout)` with gradient checkpointing toggled.

        If checkpointing would be switched off, but the activations are not expected to fit into
        memory without it, nothing is yielded.
        """
        settings = self._fastest_or(layout)
        switched = {**settings, "gradient_checkpointing": not settings["gradient_checkpointing"]}
        if switched["gradient_checkpointing"] or self.bench.fits_without_checkpointing():
            yield switched

    def _limits(self, settings: Settings) -> Iterator[Settings]:
        """Yield `settings` with each token limit, from the largest down to the first slow one.

        The caller should measure each settings dict before requesting the next one. A limit is slow
        if training takes more than `SLOWER` times as long as with the previous limit; smaller
        limits are assumed to be slower still. The largest limit is compared with training without a
        limit or, if that was not measured, with the recipe's own settings.
        """
        seconds = self._seconds()
        unlimited = {**settings, "max_tokens_per_micro_batch": None}
        own_seconds = seconds.get(tuple(self.own.items()), math.inf)
        previous = seconds.get(tuple(unlimited.items()), own_seconds)
        for limited in self._all_limits(settings):
            yield limited
            measurement = self.measurements.get(tuple(limited.items()))
            if measurement is not None:
                if measurement.seconds > SLOWER * previous:
                    return
                previous = measurement.seconds

    def _all_limits(self, settings: Settings) -> list[Settings]:
        """Return `settings` with each token limit, the largest first.

        The list is empty for `layout: padded`, which does not support a limit.
        """
        if settings["layout"] == "padded":
            return []
        budgets = token_budgets(self.bench.sequence_lengths)
        limits = [{**settings, "max_tokens_per_micro_batch": budget} for budget in budgets]
        return limits[::-1]

    def _has_time(self, runs: int = 1) -> bool:
        """Return whether there is time for `runs` more runs.

        Each is assumed to take `HEADROOM` times as long as the quickest run so far. If nothing has
        run yet, return whether any time is left.
        """
        seconds = 0.0 if math.isinf(self._seconds_to_measure) else self._seconds_to_measure
        return self.bench.budget.left > runs * HEADROOM * seconds

    @property
    def refused_layouts(self) -> dict[str, str]:
        """The last reason why settings were refused, by layout; empty if none were refused."""
        return {str(dict(key)["layout"]): reason for key, reason in self.refused.items()}

    @property
    def repeated(self) -> bool:
        """Whether the best settings were measured more than once."""
        return self._runs[tuple(self.best.items())] > 1

    @property
    def not_tried(self) -> list[Settings]:
        """The candidates that were not measured; empty if nothing was measured at all."""
        return self._not_measured(self.candidates()) if self.measurements else []

    @property
    def cannot_win(self) -> list[Settings]:
        """The settings that were skipped because a larger token limit was already too slow."""
        if not self.measurements:
            return []
        not_tried = self.not_tried
        limits = self._all_limits(self._fastest_or(self._layouts()[0]))
        return [settings for settings in self._not_measured(limits) if settings not in not_tried]

    @property
    def left_out_for_memory(self) -> bool:
        """Whether gradient checkpointing was always on, because memory might run out without it."""
        tried = [dict(key)["gradient_checkpointing"] for key in self.measurements]
        return bool(tried) and all(tried) and not self.bench.fits_without_checkpointing()

    def _not_measured(self, candidates: Iterable[Settings]) -> list[Settings]:
        """Return the candidates that were not measured, without duplicates."""
        settings = []
        for candidate in candidates:
            if tuple(candidate.items()) not in self.measurements and candidate not in settings:
                settings.append(candidate)
        return settings

    def measure(self, settings: Settings, again: bool = False) -> Measurement | None:
        """Measure settings and return their fastest measurement; `None` if they cannot run.

        The result is stored in `measurements`, and the reason why settings cannot be used in
        `refused`. Settings that were tried before are run again only if `again` is set; if the
        repetition fails, the previous measurement is returned.

        Raises:
            BudgetSpent: if the budget ends before the measurement does.
        """
        key = tuple(settings.items())
        previous = self.measurements.get(key)
        if key in self.measurements and not again:
            return previous
        self.announce(settings)
        clock = self.bench.budget.clock
        begun = clock()
        try:
            measurement = self.bench.training_phase(settings)
        except ValueError as error:
            self.refused[key] = str(error)
            measurement = None
        else:
            self._runs[key] += 1
            self._seconds_to_measure = min(self._seconds_to_measure, clock() - begun)
        if measurement is None or (previous and previous.seconds < measurement.seconds):
            measurement = previous
        self.measurements[key] = measurement
        return measurement

    def _measure_close_ones_again(self) -> None:
        """Measure the settings within `CLOSE` of the fastest two more times, as far as time allows.

        In both rounds, the recipe's own settings come first, then the others, fastest first.
        """
        first = self._seconds()
        limit = CLOSE * min(first.values(), default=0.0)
        own = tuple(self.own.items())
        for _ in range(2):
            for key in sorted(first, key=lambda key: (key != own, first[key])):
                if first[key] < limit and self._has_time():
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
            "gradient_checkpointing": self.bench.gradient_checkpointing,
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": num_completions // size,
        }

    @property
    def best(self) -> Settings:
        """The fastest settings, or the recipe's own if these are almost as fast.

        The result is `{}` if no settings ran.
        """
        seconds = self._seconds()
        own_seconds = seconds.get(tuple(self.own.items()))
        other = self._fastest_other()
        if own_seconds is None:
            return other
        if not other or WORTHWHILE * own_seconds <= seconds[tuple(other.items())]:
            return self.own
        return other

    def _fastest_other(self) -> Settings:
        """Return the fastest settings other than the recipe's own; `{}` if no others ran."""
        seconds = self._seconds()
        seconds.pop(tuple(self.own.items()), None)
        if not seconds:
            return {}
        fastest = min(seconds, key=seconds.__getitem__)
        return dict(fastest)

    def _seconds(self) -> dict[Key, float]:
        """Return the shortest training time, in seconds, of each settings dict, by its items.

        Settings that could not run are left out.
        """
        seconds = {}
        for key, measurement in self.measurements.items():
            if measurement is not None:
                seconds[key] = measurement.seconds
        return seconds

    def lines(self) -> Settings:
        """Return the recipe keys to set for the best settings.

        They do not change the number of completions per step or per generation. The result is `{}`
        if the recipe's own settings are the best, or if no settings ran.
        """
        best = self.best
        if not best or best == self.own:
            return {}
        batch = self.bench.batch
        lengths = self.bench.sequence_lengths
        num_completions = batch.completions_per_step // batch.num_processes
        budget = best["max_tokens_per_micro_batch"]
        if budget is None and len(lengths) < num_completions:
            budget = sum(lengths)  # the size of the only micro-batch that was measured
            checkpointing = best["gradient_checkpointing"] or not self.bench.gradient_checkpointing
            if self.bench.device != "cpu" and checkpointing:
                # the recipe's micro-batch needs no less memory; a GPU is no faster with small ones
                budget = max(budget, budget * batch.per_device_train_batch_size // len(lengths))
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
    """Measure a recipe on this machine as `grpo-ext bench` does, and return its best settings.

    Args:
        config: the path or name of the recipe.

    Returns:
        The recipe keys to set, which do not change the number of completions per step or per
        generation; `{}` if the recipe's own settings are the best.

    Raises:
        ValueError: if the recipe cannot be used, a step takes too long, no layout can be used or
            fits into memory, or nothing could be measured in time.
        FileNotFoundError: if there is no such recipe.
        KeyboardInterrupt: after Ctrl-C.
    """
    budget = Budget(60 * MINUTES)
    with interruptible(budget):
        bench = Bench(load_recipe(config, None, 1), budget)
        bench.as_it_stands()
        search = Search(bench)
        for _ in search.run():
            pass
    if not search.best:
        raise ValueError(
            f"no setting could be measured in {MINUTES:g} minutes. Run "
            f"`grpo-ext bench --config {config} --minutes {5 * MINUTES:g}`."
        )
    return search.lines()


def layout_settings(layout: str, checkpointing: bool) -> Settings:
    """Return settings with this layout, no token limit, and gradient checkpointing on or off.

    `Bench.training_phase` runs a step with such settings as a single micro-batch.
    """
    return {
        "layout": layout,
        "max_tokens_per_micro_batch": None,
        "gradient_checkpointing": checkpointing,
    }


def token_budgets(lengths: list[int]) -> list[int]:
    """Return the three largest powers of 2 between the longest length and the sum of the lengths.

    The powers are in ascending order. There may be fewer than three, or none.
    """
    budgets = []
    for exponent in range(24):
        if max(lengths) < 2**exponent < sum(lengths):
            budgets.append(2**exponent)
    return budgets[-3:]
