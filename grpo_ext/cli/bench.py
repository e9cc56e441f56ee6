"""`grpo-ext bench`: measure a recipe on this machine for about two minutes, and print the fastest settings.

examples:
  grpo-ext bench --config recipes/countdown/tiny.yaml
  grpo-ext bench --config recipes/gsm8k/qwen2.5-1.5b.yaml --json

It runs the recipe for a few generations, then the training phase alone on the same completions with each layout, with limits of
a micro-batch in tokens, and with gradient checkpointing off if it is on. It prints lines to paste into the recipe: they change
neither the completions of a step nor the objective. A model that is not here gets random weights, if its shape is known.
Training counts 6 operations per trained weight and token, 4 per frozen one, attention and the head, and nothing for
recomputation; the rate of matrix products is measured.

exit codes: 0 done; 2 the recipe cannot be used, or nothing fits into memory
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from grpo_ext.cli.command import add_recipe_command

if TYPE_CHECKING:
    from grpo_ext.bench.measure import Bench


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_recipe_command(subparsers, __doc__, run)
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")


def run(args: argparse.Namespace) -> int:
    import yaml

    from grpo_ext.bench.measure import Bench
    from grpo_ext.bench.search import Search

    def show(*lines: str) -> None:
        if not args.json:
            print(*lines, sep="\n", flush=True)

    bench = Bench(args.config, args.overrides)
    if bench.untrained:
        show("The model is not here: random weights in its shape, and drawn lengths.")
    stands = bench.as_it_stands()
    show(*stands_lines(bench, stands))
    search = Search(bench)
    show(
        f"\ntraining phase, {bench.rows} completions: seconds, tokens/s, share of the rate, peak GiB"
    )
    for settings, measured in search():
        show(f"{in_words(settings):44} {measured_in_words(measured)}")
    for layout, why in search.refused.items():
        show(f"layout {layout} does not go with this model: {why}")
    lines = search.lines()
    if lines:
        own, best = (
            search.found[tuple(search.own.items())],
            search.found[tuple(search.best.items())],
        )
        gain = (
            f", {own.seconds / best.seconds:.2f} times as fast as its own" if own and best else ""
        )
        show(
            f"\nthe fastest settings, as lines of the recipe{gain}:",
            yaml.safe_dump(lines, sort_keys=False).strip(),
        )
    else:
        show("\nthe recipe's own settings are the fastest")
    longest = bench.longest_completion()
    if longest:
        show(
            f"\nlongest completion that fits by estimate, one per micro-batch with checkpointing: {longest:,} tokens"
        )
    if args.json:
        table = [
            {**dict(key), **(vars(x) if x else {"out_of_memory": True})}
            for key, x in search.found.items()
        ]
        found = {
            "random_weights": bench.untrained,
            "as_it_stands": stands,
            "training_phase": table,
            "settings": lines,
            "longest_completion": longest,
        }
        print(json.dumps({"recipe": args.config, **found}, indent=2))
    return 0


def stands_lines(bench: Bench, found: dict[str, float]) -> Iterator[str]:
    """Yield lines on the recipe as it stands."""
    phases = {
        key.partition("/")[2]: value
        for key, value in found.items()
        if key.startswith("time/") and value >= 0.001
    }
    yield "as it stands, seconds per step: " + ", ".join(
        f"{name} {value:.3g}" for name, value in phases.items()
    )
    sampled = (
        found["completions/mean_length"]
        * bench.batch.completions
        / found["sampling/generation_time"]
    )
    share = found.get("throughput/share_of_rate")
    of_rate = (
        f"; training at {share:.0%} of the matrix rate" if share else "; no group has signal yet"
    )
    yield f"{sampled:,.0f} sampled tokens/s, {found['throughput/tokens_per_second']:,.0f} tokens/s in all{of_rate}"


def in_words(settings: dict[str, Any]) -> str:
    """Return settings as the start of a row."""
    budget = settings["max_tokens_per_micro_batch"]
    size = f"at most {budget:,} tokens" if budget else "one micro-batch"
    own = (
        f"recipe: {settings['layout']}, {settings['per_device_train_batch_size']} rows"
        if len(settings) > 3
        else ""
    )
    return f"{own or settings['layout']}, {size}{', checkpointing' * settings['gradient_checkpointing']}"


def measured_in_words(x: Any) -> str:
    """Return a measurement as the rest of a row."""
    if x is None:
        return "does not fit"
    return f"{x.seconds:8.3f} {x.tokens_per_second:10,.0f} {x.share or 0:7.1%} {x.peak_gib:8.2f}"
