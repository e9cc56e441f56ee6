"""`grpo-ext bench`: measure a recipe for two minutes, and print its fastest settings.

examples:
  grpo-ext bench --config recipes/countdown/tiny.yaml
  grpo-ext bench --config recipes/gsm8k/qwen2.5-1.5b.yaml --minutes 10 --json

It runs the recipe for up to four generations. Then it repeats only the training phase on the same
completions: with each layout, with token limits per micro-batch, and with and without gradient
checkpointing. If other settings are faster than the recipe's own, it prints them as lines to paste
into the recipe. These lines change neither the completions per step nor the objective. If a step
takes a long time, it measures fewer steps with fewer completions, and prints how many. When the
time is over, or after Ctrl-C, it prints the best settings so far and what was not tried.

If the model is not on this machine but its shape is known, it gets random weights. In the output,
"share of the matrix rate" is the number of operations per second in training, divided by the
device's measured rate of matrix multiplication. Training is counted as 6 operations per token for
each trained weight and 4 for each frozen one, plus attention and the head, without recomputation.

exit codes: 0 done; 2 the recipe cannot be used, nothing fits into memory, or the time is too short
for one step; 130 interrupted by Ctrl-C, with or without results; 143 ended by SIGTERM
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from grpo_ext.bench.budget import MINUTES, Budget, interruptible
from grpo_ext.cli.command import add_recipe_command
from grpo_ext.common.termination import until_interrupted

if TYPE_CHECKING:
    from grpo_ext.bench.display import Display
    from grpo_ext.bench.measure import Bench, Measurement, Settings
    from grpo_ext.bench.search import Search

COLUMNS = "seconds, tokens/s, share of the matrix rate, peak GiB"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_recipe_command(subparsers, __doc__, run)
    parser.add_argument(
        "--minutes",
        type=minutes,
        default=MINUTES,
        metavar="N",
        help=f"time limit for all measurements, in minutes (default: {MINUTES:g})",
    )
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")


def minutes(text: str) -> float:
    """Parse a positive, finite number of minutes for argparse."""
    with suppress(ValueError):
        number = float(text)
        if 0 < number < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"must be a finite number of minutes above 0; got {text!r}")


def run(args: argparse.Namespace) -> int:
    from grpo_ext.bench.display import Bar, Lines

    budget = Budget(60 * args.minutes)
    with interruptible(budget):
        if args.json or not sys.stdout.isatty():
            return measure(args, budget, Lines(budget, results=not args.json))
        with Bar(budget) as bar:
            return measure(args, budget, bar)


def measure(args: argparse.Namespace, budget: Budget, display: Display) -> int:
    """Measure a recipe until all settings are measured or the budget ends, and show the results.

    Args:
        args: the parsed command-line arguments.
        budget: the time for all measurements.
        display: shows progress and results.

    Returns:
        The exit code: 130 after Ctrl-C, otherwise 0.

    Raises:
        ValueError: if the recipe cannot be used, nothing fits into memory, or the time is too short
            for one step.
        FileNotFoundError: if there is no such recipe.
    """
    search = None
    with until_interrupted():
        display.begin("reading the recipe")
        from grpo_ext.recipe.load import load_recipe

        recipe = load_recipe(args.config, args.overrides, 1)  # before slow imports
        from grpo_ext.bench.measure import Bench
        from grpo_ext.bench.search import Search

        bench = Bench(recipe, budget)
        search = Search(bench, lambda settings: display.begin(settings_label(settings)))
        if bench.random_weights:
            display.result(
                "The model's weights are not on this machine, so the measurement uses random "
                "weights of its shape and completions of random lengths."
            )
        display.begin("the recipe as it is written")
        bench.as_it_stands()
    if search is None or not search.bench.figures:
        print("grpo-ext: interrupted before anything was measured", file=sys.stderr)
        return 130
    for line in figure_lines(search.bench):
        display.result(line)
    with until_interrupted():
        for line in training_lines(search):
            display.result(line)
    longest = search.bench.longest_completion()
    for line in advice_lines(search, longest):
        display.result(line)
    if args.json:
        print(json.dumps(report(args.config, search, longest), indent=2))
    return 130 if budget.interrupted else 0


def report(recipe: str, search: Search, longest: int | None) -> dict[str, object]:
    """Return the measurements as plain data for `--json`.

    Args:
        recipe: the recipe's file or name.
        search: the search, whether or not it has ended.
        longest: the longest completion that fits, in tokens; `None` if unknown.
    """
    bench = search.bench
    return {
        "recipe": recipe,
        "random_weights": bench.random_weights,
        "interrupted": bench.budget.interrupted,
        "seconds": bench.budget.spent,
        "completions_per_step": {
            "recipe": bench.batch.completions_per_step,
            "as_it_stands": bench.sizes.completions_per_step,
            "training_phase": bench.num_completions,
        },
        "as_it_stands": bench.figures,
        "training_phase": measurement_rows(search),
        "not_tried": search.not_tried,
        "cannot_win": search.cannot_win,
        "settings": search.lines(),
        "longest_completion": longest,
    }


def figure_lines(bench: Bench) -> Iterator[str]:
    """Yield lines with the seconds per step and the rates of the recipe as it is written.

    If the time was too short for all groups of the recipe, the lines say how many completions were
    measured.
    """
    figures = bench.figures
    phases = []
    for name, seconds in figures.items():
        if name.startswith("time/") and seconds >= 0.001:
            phases.append(f"{name.removeprefix('time/')} {seconds:.3g}")
    subject = "recipe as written"
    if bench.sizes != bench.batch:
        subject = f"recipe with {completions(bench, bench.sizes.completions_per_step)} per step"
    if not bench.warm:
        subject += ", first generation"
    yield f"{subject}, seconds per step: {', '.join(phases)}"
    tokens = figures["completions/mean_length"] * bench.sizes.completions
    sampled = tokens / figures["sampling/generation_time"]
    total = figures["throughput/tokens_per_second"]
    rates = f"{sampled:,.0f} tokens/s in generation, {total:,.0f} tokens/s in the whole step"
    share = figures.get("throughput/share_of_rate")
    if share:
        yield f"{rates}; training at {share:.0%} of the matrix rate"
    else:
        yield f"{rates}; no share of the matrix rate: no group had signal, or TRL computes the loss"


def completions(bench: Bench, count: int) -> str:
    """Format how many of a step's completions are measured, such as `8 of 64 completions`."""
    step = bench.batch.completions_per_step
    return f"{count} of {step} completions" if count < step else f"{count} completions"


def training_lines(search: Search) -> Iterator[str]:
    """Measure the training phase with several settings; yield a title, then a line for each.

    After Ctrl-C, measure and yield nothing.
    """
    if search.bench.budget.interrupted:
        return
    for index, (settings, measurement) in enumerate(search.run()):
        if index == 0:
            count = completions(search.bench, search.bench.num_completions)
            yield f"\ntraining phase, {count}: {COLUMNS}"
        is_refused = tuple(settings.items()) in search.refused
        yield f"{settings_label(settings):44} {measurement_cells(measurement, is_refused)}"


def settings_label(settings: Settings) -> str:
    """Return the label for measured settings.

    Settings with the key `per_device_train_batch_size` are the recipe's own; their label begins
    with `recipe:`.
    """
    label = settings["layout"]
    if "per_device_train_batch_size" in settings:
        label = f"recipe: {label}, {settings['per_device_train_batch_size']} rows"
    budget = settings["max_tokens_per_micro_batch"]
    count = settings.get("gradient_accumulation_steps", 1)
    whole = "one micro-batch" if count == 1 else f"{count} micro-batches"
    label += f", at most {budget:,} tokens" if budget else f", {whole}"
    if settings["gradient_checkpointing"]:
        label += ", checkpointing"
    return label


def measurement_cells(measurement: Measurement | None, is_refused: bool) -> str:
    """Format a measurement as the cells of `COLUMNS`.

    If `measurement` is `None`, return "not supported" or, unless `is_refused` is set, "does not
    fit".
    """
    if measurement is None:
        return "not supported" if is_refused else "does not fit"
    rate = f"{measurement.tokens_per_second:10,.0f}"
    share = f"{measurement.share or 0:7.1%}"
    return f"{measurement.seconds:8.3f} {rate} {share} {measurement.peak_gib:8.2f}"


def measurement_rows(search: Search) -> list[dict[str, object]]:
    """Return settings and measurements as plain data for JSON, one mapping for each setting.

    In place of a measurement, settings that cannot be used have the reason under `refused`, and
    settings that ran out of memory have `out_of_memory: True`.
    """
    rows = []
    for key, measurement in search.measurements.items():
        row: dict[str, object] = dict(key)
        if measurement is not None:
            row |= vars(measurement)
        elif key in search.refused:
            row["refused"] = search.refused[key]
        else:
            row["out_of_memory"] = True
        rows.append(row)
    return rows


def advice_lines(search: Search, longest: int | None) -> Iterator[str]:
    """Yield lines that say what was not measured, and what to paste into the recipe.

    Args:
        search: the search, whether or not it has ended.
        longest: the longest completion that fits, in tokens; `None` if unknown.
    """
    import yaml

    for layout, reason in search.refused_layouts.items():
        yield f"settings with layout {layout} were not measured: {reason}"
    if search.cannot_win:
        labels = "; ".join(map(settings_label, search.cannot_win))
        yield f"not measured, because a larger token limit was already too slow: {labels}"
    if search.left_out_for_memory:
        yield "gradient checkpointing was not switched off, because memory might run out"
    if search.not_tried:
        reason = "of Ctrl-C" if search.bench.budget.interrupted else "the time was over"
        labels = "; ".join(map(settings_label, search.not_tried))
        yield f"not tried, because {reason}: {labels}"
    if search.best and not search.repeated:
        yield "the fastest settings were measured only once: small differences may be due to chance"
    lines = search.lines()
    measured = " measured" if search.not_tried else ""
    if lines:
        gain = ""
        own = search.measurements[tuple(search.own.items())]
        best = search.measurements[tuple(search.best.items())]
        if own and best:
            gain = f", {own.seconds / best.seconds:.2f} times as fast as the recipe's own"
        yield f"\nthe fastest settings{measured}{gain}; paste these lines into the recipe:"
        yield yaml.safe_dump(lines, sort_keys=False).strip()
    elif search.best:
        yield f"\nkeep the recipe's own settings: no other settings{measured} are clearly faster"
    else:
        yield "\nno settings of the training phase were measured"
    if longest:
        yield (
            "\nestimated longest completion that fits, with one completion per micro-batch and "
            f"gradient checkpointing: {longest:,} tokens"
        )
