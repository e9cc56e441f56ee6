"""Does the reward `code` judge honest programs correctly, and how fast is it?

    python -m benchmarks.code [--quick] [--check] [--out FILE]

Judges the 500 programs of `honest_programs.py`: functions and classes with asserts, and contest
programs with inputs and outputs. Half of them do what the tests ask for. Hostile programs are in
tests/rewards/test_code.py. `--check` exits with 1 if a program is judged incorrectly, or if
programs cannot be isolated on this machine. The speed, in programs per second, is measured through
the worker processes of rewards, with one worker and with two.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.honest_programs import honest_programs
from benchmarks.recorded import save
from grpo_ext.rewards import build
from grpo_ext.rewards.pool import RewardPool

TIMEOUT = 60.0  # seconds of a row: a busy machine must not count as wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100 programs")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = honest_programs()[: 100 if args.quick else None]
    reward = build("code")
    columns: dict[str, list[Any]] = {
        "completions": [row.completion for row in rows],
        "tests": [row.tests for row in rows],
    }
    expected_scores = [row.score for row in rows]
    figures: dict[str, float] = {"programs": len(rows), "right ones": sum(expected_scores)}
    figures |= {f"{kind} programs": n for kind, n in Counter(row.kind for row in rows).items()}
    for workers in (1, 2):
        with RewardPool(workers, timeout=TIMEOUT) as pool:
            pool.score(reward, {name: column[:workers] for name, column in columns.items()})
            start = time.perf_counter()
            scores, _ = pool.score(reward, columns)
            seconds = time.perf_counter() - start
        wrong = [row for row, score in zip(rows, scores, strict=True) if score != row.score]
        for row in wrong[:5]:
            print(f"judged wrong, must get {row.score:g}: {row.tests[0]}\n{row.completion}")
        plural = "worker" if workers == 1 else "workers"
        figures[f"judged wrong, {workers} {plural}"] = len(wrong)
        figures[f"programs a second, {workers} {plural}"] = len(rows) / seconds
    print("; ".join(f"{name}: {figure:.4g}" for name, figure in figures.items()))
    if args.out:
        save(args.out, figures)
    missed = sum(count for name, count in figures.items() if name.startswith("judged wrong"))
    return int(args.check and missed > 0)


if __name__ == "__main__":
    sys.exit(main())
