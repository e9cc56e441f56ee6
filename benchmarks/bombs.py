"""Can a formula in a completion exhaust the trainer's time or memory?

    python -m benchmarks.bombs [--quick] [--check] [--seed N] [--out FILE]

Scores 1,000 random formulas of 16 kinds with `accuracy`: towers of powers, factorials, nested sums,
integrals, expansions, matrices, deep nesting, long chains and others. Each formula is a separate
batch and is scored with the trainer's default settings: one worker, 5 seconds per row, 1 GiB per
worker. The first formula starts the worker and is not timed. Prediction before the first run: fewer
than 5 % reach the deadline.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.recorded import save
from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.rewards import build
from grpo_ext.rewards.pool import RewardPool

TIMEOUT = float(GRPOExtConfig.reward_timeout)
BOUNDS = {
    "longest": TIMEOUT + 0.5,
    "trainer": 1000.0,
    "worker": 1500.0,
    "above 0": 0,
}  # seconds, MB, MB, formulas
# in a box; no formula here comes to one of them
GOLD = [
    r"\frac{12345}{67891}",
    r"\sqrt{12345}+\frac{1}{67891}",
    "x^{77}-6789",
    r"(\sqrt{2}, 6789)",
    r"\frac{67891\pi}{12345}",
]
MIB = 2**20
Kind = Callable[[random.Random], str]


def large(rng: random.Random) -> str:
    """Return a large number, in one of the ways that people write one."""
    exponent = rng.randint(3, 30)
    return rng.choice(
        [
            str(rng.randint(10**5, 10**12)),
            f"10^{{{exponent}}}",
            "9" * rng.randint(5, 200),
            f"{exponent}!",
        ]
    )


def tower(rng: random.Random) -> str:
    found = str(rng.randint(2, 9))
    for _ in range(rng.randint(2, 30)):
        found = f"{rng.randint(2, 99)}^{{{found}}}"
    return found


def factorial(rng: random.Random) -> str:
    return "(" * (n := rng.randint(1, 12)) + large(rng) + "!)" * n


def binomial(rng: random.Random) -> str:
    return rf"\binom{{{large(rng)}}}{{{large(rng)}}}"


def summed(rng: random.Random) -> str:
    found = rng.choice(["i^{j}", "i j k", r"\frac{1}{i!}", "2^{i}", r"\sqrt{i+j}"])
    for name in rng.sample("ijk", rng.randint(1, 3)):
        sign = rng.choice([r"\sum", r"\prod"])
        found = rf"{sign}_{{{name}=1}}^{{{large(rng)}}} {found}"
    return found


def integral(rng: random.Random) -> str:
    body = "x"
    for _ in range(rng.randint(1, 12)):
        body = rng.choice(
            [r"\sin({})", r"e^{{{}}}", r"\sqrt{{1+{}}}", r"\ln({}+2)", r"\frac{{1}}{{1+{}^7}}"]
        ).format(body)
    end = rng.choice(["1", large(rng), r"\infty"])
    return rf"\int_0^{{{end}}} {body} \, dx"


def expansion(rng: random.Random) -> str:
    names = rng.sample("abcdmnpqrstuvwxyz", rng.randint(2, 12))
    return rf"({'+'.join(names)})^{{{rng.randint(20, 10**6)}}}" * rng.randint(1, 3)


def nested(rng: random.Random) -> str:
    found = "2"
    shells = [r"\sqrt{{1+{}}}", r"\frac{{1}}{{1+{}}}", r"\left({}\right)", r"\sin({})", r"\log({})"]
    for _ in range(rng.randint(5, 40)):
        found = rng.choice(shells).format(found)
    return found


def root(rng: random.Random) -> str:
    return rf"\sqrt[{large(rng)}]{{{large(rng)}}} + \sqrt[{large(rng)}]{{{large(rng)}}}"


def matrix(rng: random.Random) -> str:
    n = rng.randint(2, 5)
    letters = "abcdxyz"
    rows = []
    for _ in range(n):
        entries = [f"{rng.choice(letters)}^{{{rng.randint(1, 99)}}}" for _ in range(n)]
        rows.append(" & ".join(entries))
    return (
        r"\det\begin{pmatrix}" + r" \\ ".join(rows) + rf"\end{{pmatrix}}^{{{rng.randint(1, 1000)}}}"
    )


def remainder(rng: random.Random) -> str:
    return rf"{rng.randint(2, 99)}^{{{large(rng)}}} \bmod {large(rng)}"


def chain(rng: random.Random) -> str:
    sign = rng.choice(["+", "=", r"\cdot ", "-", "^"])
    return sign.join(rng.choice("xyz123") for _ in range(rng.randint(20, 140)))


def several(rng: random.Random) -> str:
    parts = [
        tower(rng) if rng.random() < 0.1 else str(rng.randint(1, 10**9))
        for _ in range(rng.randint(5, 30))
    ]
    return r"\{" + ", ".join(parts) + r"\}"


def intervals(rng: random.Random) -> str:
    return r" \cup ".join(
        f"({rng.randint(-99, 99)}, {large(rng)}]" for _ in range(rng.randint(2, 12))
    )


def equation(rng: random.Random) -> str:
    powers = "+".join(
        f"{rng.randint(1, 99)}x^{{{rng.randint(2, 500)}}}" for _ in range(rng.randint(2, 12))
    )
    return f"{powers} = {large(rng)}"


def limit(rng: random.Random) -> str:
    return (
        rf"\lim_{{n \to \infty}} \left(1 + "
        rf"\frac{{{large(rng)}}}{{n}}\right)^{{n^{{{rng.randint(1, 9)}}}}}"
    )


def decimal(rng: random.Random) -> str:
    return rng.choice(["1e{}", "0.{}1", "1.5 \\times 10^{{{}}}", "{}.{}"]).format(
        "9" * rng.randint(3, 250), "3" * rng.randint(3, 250)
    )


KINDS: tuple[Kind, ...] = (
    *(tower, factorial, binomial, summed, integral, expansion, nested, root),
    *(matrix, remainder, chain, several, intervals, equation, limit, decimal),
)


def formula(rng: random.Random) -> str:
    """Return a formula of one kind, or two of them joined."""
    found = rng.choice(KINDS)(rng)
    return rf"\frac{{{found}}}{{{rng.choice(KINDS)(rng)}}}" if rng.random() < 0.25 else found


def worker_memory(pid: int) -> float:
    """Return the largest resident memory of the processes below this one, in MB."""
    found = 0.0
    for child in psutil.Process(pid).children(recursive=True):
        try:
            found = max(found, child.memory_info().rss / MIB)
        except psutil.NoSuchProcess:
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100 formulas")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--seed", type=int, default=0, help="of the formulas")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    reward = build("accuracy")
    longest = 0.0
    slowest = ""
    worker = 0.0
    above = 0
    unscored = 0
    number = 100 if given.quick else 1000
    with RewardPool(GRPOExtConfig.reward_workers, timeout=TIMEOUT) as pool:
        pool.score(
            reward, {"completions": [r"\boxed{\sqrt{2}}"], "solution": [rf"\boxed{{{GOLD[0]}}}"]}
        )
        for _ in range(number):
            text = formula(rng)
            completion = rng.choice(
                [rf"\boxed{{{text}}}", f"<answer>{text}</answer>", f"The answer is ${text}$"]
            )
            start = time.monotonic()
            [score], _ = pool.score(
                reward,
                {"completions": [completion], "solution": [rf"\boxed{{{rng.choice(GOLD)}}}"]},
            )
            if (seconds := time.monotonic() - start) > longest:
                longest = seconds
                slowest = text
            worker = max(worker, worker_memory(psutil.Process().pid))
            above = above + (score is not None and score > 0)
            unscored = unscored + (score is None)
    trainer = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = {"longest": longest, "trainer": trainer, "worker": worker, "above 0": above}
    print(f"{number} formulas, seed {given.seed}: {unscored} left unscored, {above} scored above 0")
    print(f"longest wait {longest:.2f} s at a deadline of {TIMEOUT:g} s, for {slowest[:100]}")
    print(f"at most {trainer:.0f} MB in the trainer, {worker:.0f} MB in a worker")
    if given.out:
        save(given.out, {**figures, "unscored": unscored})
    return int(given.check and any(figures[name] > bound for name, bound in BOUNDS.items()))


if __name__ == "__main__":
    sys.exit(main())
