"""`grpo-ext bench`: measure a recipe for about two minutes, and print its fastest settings.

examples:
  grpo-ext bench --config recipes/countdown/tiny.yaml
  grpo-ext bench --config recipes/gsm8k/qwen2.5-1.5b.yaml --json

It runs the recipe for a few generations, then only the training phase on the same completions with
each layout, with token limits per micro-batch, and without gradient checkpointing if that is on. It
prints lines to paste into the recipe, which change neither the completions per step nor the
objective. A model that is not on this machine gets random weights, if its shape is known. The share
of the rate compares the operations of training with the measured rate of matrix products: 6 per
token for each trained weight and 4 for each frozen one, plus attention and the head, but no
recomputation.

exit codes: 0 done; 2 the recipe cannot be used, or nothing fits into memory
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_ext.cli.command import add_recipe_command

if TYPE_CHECKING:
    from grpo_ext.bench.measure import Bench, Measurement, Settings
    from grpo_ext.bench.search import Search

COLUMNS = "seconds, tokens/s, share of the rate, peak GiB"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_recipe_command(subparsers, __doc__, run)
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")


def run(args: argparse.Namespace) -> int:
    from grpo_ext.bench.measure import Bench
    from grpo_ext.bench.search import Search

    def show(line: str) -> None:
        if not args.json:
            print(line, flush=True)

    bench = Bench(args.config, args.overrides)
    if bench.random_weights:
        show(
            "The model is not on this machine: random weights of its shape and random lengths "
            "are measured."
        )
    figures = bench.as_it_stands()
    for line in figure_lines(bench, figures):
        show(line)
    search = Search(bench)
    show(f"\ntraining phase, {bench.num_completions} completions: {COLUMNS}")
    for settings, measurement in search.run():
        show(f"{settings_label(settings):44} {measurement_cells(measurement)}")
    for line in advice_lines(search):
        show(line)
    longest = bench.longest_completion()
    if longest:
        show(
            "\nestimated longest completion that fits, one per micro-batch with checkpointing: "
            f"{longest:,} tokens"
        )
    if args.json:
        report = {
            "recipe": args.config,
            "random_weights": bench.random_weights,
            "as_it_stands": figures,
            "training_phase": measurement_rows(search),
            "settings": search.lines(),
            "longest_completion": longest,
        }
        print(json.dumps(report, indent=2))
    return 0


def figure_lines(bench: Bench, figures: dict[str, float]) -> Iterator[str]:
    """Yield the lines about the recipe as it is written."""
    phases = []
    for name, seconds in figures.items():
        if name.startswith("time/") and seconds >= 0.001:
            phases.append(f"{name.removeprefix('time/')} {seconds:.3g}")
    yield f"recipe as written, seconds per step: {', '.join(phases)}"
    tokens = figures["completions/mean_length"] * bench.batch.completions
    sampled = tokens / figures["sampling/generation_time"]
    total = figures["throughput/tokens_per_second"]
    rates = f"{sampled:,.0f} sampled tokens/s, {total:,.0f} tokens/s in all"
    share = figures.get("throughput/share_of_rate")
    if share:
        yield f"{rates}; training at {share:.0%} of the matrix rate"
    else:
        yield f"{rates}; no group has signal yet"


def settings_label(settings: Settings) -> str:
    """Return the label of a row of measurements.

    Only the recipe's own settings contain `per_device_train_batch_size`, which marks them.
    """
    label = settings["layout"]
    if "per_device_train_batch_size" in settings:
        label = f"recipe: {label}, {settings['per_device_train_batch_size']} rows"
    budget = settings["max_tokens_per_micro_batch"]
    label += f", at most {budget:,} tokens" if budget else ", one micro-batch"
    if settings["gradient_checkpointing"]:
        label += ", checkpointing"
    return label


def measurement_cells(measurement: Measurement | None) -> str:
    """Format a measurement as the cells of `COLUMNS`, or "does not fit" for `None`."""
    if measurement is None:
        return "does not fit"
    rate = f"{measurement.tokens_per_second:10,.0f}"
    share = f"{measurement.share or 0:7.1%}"
    return f"{measurement.seconds:8.3f} {rate} {share} {measurement.peak_gib:8.2f}"


def measurement_rows(search: Search) -> list[dict[str, object]]:
    """Return settings and measurements as plain data for JSON.

    Settings that did not fit into memory have `out_of_memory` instead of a measurement.
    """
    rows = []
    for key, measurement in search.measurements.items():
        row: dict[str, object] = dict(key)
        if measurement is None:
            row["out_of_memory"] = True
        else:
            row |= vars(measurement)
        rows.append(row)
    return rows


def advice_lines(search: Search) -> Iterator[str]:
    """Yield lines that say which layouts were not measured, and what to paste into the recipe."""
    import yaml

    for layout, reason in search.refused.items():
        yield f"layout {layout} was not measured: {reason}"
    lines = search.lines()
    if not lines:
        yield "\nthe recipe's own settings are the fastest"
        return
    own = search.measurements[tuple(search.own.items())]
    best = search.measurements[tuple(search.best.items())]
    gain = ""
    if own and best:
        gain = f", {own.seconds / best.seconds:.2f} times as fast as its own"
    yield f"\nthe fastest settings, as lines of the recipe{gain}:"
    yield yaml.safe_dump(lines, sort_keys=False).strip()
