"""Does the reward `code` judge honest programs right, and what does a program cost?

    python -m benchmarks.code [--quick] [--check] [--out FILE]

500 programs of 50 functions: half do what the tests ask for, half are another function that differs on them. The tests' values
come from the functions themselves, here. Hostile programs are in tests/rewards/test_code.py. `--check` exits with 1 if one is
judged wrong, or if isolation is not available. Programs a second are measured through the worker processes of rewards, with
one worker and with two.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.recorded import save
from grpo_ext.rewards import build
from grpo_ext.rewards.pool import RewardPool

TIMEOUT = 60.0  # seconds of a row: a busy machine must not count as wrong

NUMBERS = [
    "x + 1", "2 * x", "x * x", "-x", "abs(x) - 3", "x // 3", "x % 7", "divmod(x, 5)", "bin(x)", "str(x)[::-1]", "x > 4",
    "x == 3", "[x] * 3", "list(range(x % 6))", "{x: x * x}", "{x, x + 1}", "(x, -x)", "max(x, 10)", "x ** 3 - x", "hex(x * 77)",
    "float(x)", "x / 4", "round(x / 3, 2)", "sum(range(x % 50))", "None if x % 2 else x",
]  # fmt: skip
TEXTS = [
    "x.upper()", "x[::-1]", "len(x)", "x.split()", "x.title()", "sorted(x)", "set(x)", "x.replace('a', 'b')", "x + x",
    "x.count('a')",
    "x[:2]", "x[1:]", "x.isalpha()", "'-'.join(x)", "{c: x.count(c) for c in x}", "ord(x[0])", "x.find('e')",
    "[c for c in x if c > 'f']",
    "x.center(12, '*')", "tuple(x)", "x.startswith('a')", "max(x)", "x.encode()", "x.partition(' ')", "x.swapcase()",
]  # fmt: skip
INPUTS: dict[bool, list[Any]] = {
    True: [0, 1, 3, 4, 11, 28, 97],
    False: ["a", "anna", "be nice", "Hello Eve", "zebra fish"],
}
SHAPES = [
    "def f(x):\n    return {}",
    "f = lambda x: {}",
    "class F:\n    def __call__(self, x):\n        return {}\nf = F()",
]


def work(seed: int = 0) -> list[tuple[str, list[str], float]]:
    """Return 500 programs with tests and the score that each must get."""
    draw = random.Random(seed)
    found: list[tuple[str, list[str], float]] = []
    for i in range(500):
        kind = i % 2 == 0
        family: list[str] = NUMBERS if kind else TEXTS
        body = family[i // 2 % 25]
        values = {repr(x): eval(body, {"x": x}) for x in INPUTS[kind]}
        right = i % 4 < 2
        other = (
            body
            if right
            else draw.choice(
                [b for b in family if any(eval(b, {"x": eval(x)}) != values[x] for x in values)]
            )
        )
        program = draw.choice(SHAPES).format(other)
        found.append(
            (
                f"So:\n```python\n{program}\n```",
                [f"assert f({x}) == {y!r}" for x, y in values.items()],
                float(right),
            )
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100 programs")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = work()[: 100 if args.quick else None]
    reward = build("code")
    columns: dict[str, list[Any]] = {
        "completions": [text for text, _, _ in rows],
        "tests": [tests for _, tests, _ in rows],
    }
    expected_scores = [score for _, _, score in rows]
    figures: dict[str, float] = {"programs": len(rows), "right ones": sum(expected_scores)}
    for workers in (1, 2):
        with RewardPool(workers, timeout=TIMEOUT) as pool:
            pool.score(reward, {name: column[:workers] for name, column in columns.items()})
            start = time.perf_counter()
            scores, _ = pool.score(reward, columns)
            seconds = time.perf_counter() - start
        plural = "worker" if workers == 1 else "workers"
        figures[f"judged wrong, {workers} {plural}"] = sum(
            score != expected for score, expected in zip(scores, expected_scores, strict=True)
        )
        figures[f"programs a second, {workers} {plural}"] = len(rows) / seconds
    print("; ".join(f"{name}: {figure:.4g}" for name, figure in figures.items()))
    if args.out:
        save(args.out, figures)
    wrong = sum(count for name, count in figures.items() if name.startswith("judged wrong"))
    return int(args.check and wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
