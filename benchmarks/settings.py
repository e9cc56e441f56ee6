"""Are the settings that `grpo-ext bench` recommends the fastest ones?

    python -m benchmarks.settings [--quick] [--check] [--out FILE]

Uses three tiny recipes with random weights and random lengths, on both cores. The search of
`grpo-ext bench` runs as it does for a user. Then every layout with every limit of a micro-batch is
measured in three rounds, in turn, so that anything that slows the machine down slows all of them.
The recommended settings, and those within 1.3 times the fastest, are measured in six more rounds.
`--check` exits with 1 if the recommended settings take more than 1.1 times as long as the fastest
ones of the sweep.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.recorded import save
from grpo_ext.bench.budget import MINUTES, Budget
from grpo_ext.bench.measure import Bench
from grpo_ext.bench.search import LAYOUTS, Search, token_budgets
from grpo_ext.recipe.load import load_recipe
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.tokenizer import build_tokenizer

# with more, and longer, completions than the recipes for poems have
RECIPES = {"countdown/tiny": [], "gsm8k/tiny": [], "poem/tiny": ["--max_completion_length", "192"]}
BOUND = 1.1
CLOSE = 1.3  # others are not measured after the first rounds
Key = tuple[tuple[str, Any], ...]


def sweep(search: Search) -> list[dict[str, Any]]:
    """Return all settings to measure.

    These are the recipe's, every layout alone, and each layout that takes a limit with every limit.
    """
    base = {"layout": "chunks", "max_tokens_per_micro_batch": None, "gradient_checkpointing": False}
    limited = [
        {"max_tokens_per_micro_batch": size}
        for size in (None, *token_budgets(search.bench.sequence_lengths))
    ]
    every = [{**base, **limit, "layout": layout} for layout in LAYOUTS["cpu"] for limit in limited]
    return [
        search.own,
        *(x for x in every if x["layout"] != "padded" or not x["max_tokens_per_micro_batch"]),
    ]


def measure(name: str, words: list[str], rounds: int) -> dict[str, Any]:
    """Return the row of one recipe, with the median seconds of all settings."""
    with tempfile.TemporaryDirectory() as folder:
        build_model(build_tokenizer([])).config.save_pretrained(folder)
        recipe = load_recipe(name, ["--model_name_or_path", folder, *words], 1)
        bench = Bench(recipe, Budget(60 * MINUTES))
        bench.as_it_stands()
        search = Search(bench)
        list(search.run())
        named = search.best
        bench.budget = Budget()  # the sweep takes longer
        every = sweep(search)
        if named not in every:  # with gradient checkpointing
            every.append(named)
        seconds: dict[Key, list[float]] = {tuple(settings.items()): [] for settings in every}
        medians = dict.fromkeys(seconds, 0.0)
        for i in range(3 * rounds):
            close = CLOSE * min(medians.values())
            for key, found in seconds.items():
                if i < rounds or dict(key) == named or medians[key] < close:
                    measured = bench.training_phase(dict(key))
                    found.append(measured.seconds if measured else float("inf"))
            medians = {key: statistics.median(found) for key, found in seconds.items()}
    fastest = min(medians, key=lambda key: medians[key])
    return {
        "rows": bench.num_completions,
        "named": named,
        "seconds": medians[tuple(named.items())],
        "fastest": dict(fastest),
        "fastest seconds": medians[fastest],
        "slowest seconds": max(medians.values()),
        "ratio": medians[tuple(named.items())] / medians[fastest],
        "settings": len(medians),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one recipe, two rounds")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {}
    for name, words in list(RECIPES.items())[: 1 if args.quick else None]:
        row = found[name] = measure(name, words, 2 if args.quick else 3)
        print(
            f"{name:15} {row['rows']} rows: named {row['named']} {row['seconds']:.3f} s, "
            f"fastest of {row['settings']} "
            f"{row['fastest']} {row['fastest seconds']:.3f} s: {row['ratio']:.2f} times (at "
            f"most {BOUND}); slowest "
            f"{row['slowest seconds']:.3f} s",
            flush=True,
        )
    if args.out:
        save(args.out, found)
    return int(args.check and any(row["ratio"] > BOUND for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
