"""How long does the training phase of a step take with ours and with plain TRL?

    python -m benchmarks.step [--quick] [--check] [--case NAME ...]
        [--parts time memory ranks profile] [--out FILE]
    python -m benchmarks.step --pretrained [--case NAME ...] [--out FILE]
    python -m benchmarks.step --growth PLOT.png [--out FILE]

The training phase is everything except sampling: rewards, advantages, old and reference log-probs,
the loss and its gradient. TRL and ours alternate on the same completions in one process. The parts
are:

- time: the median seconds of both, the median ratio, the tokens run through the model, the largest
  difference of the gradient relative to its largest entry, and a lower bound, which is the time of
  the matrix products alone at the rate that this machine reaches for that width;
- memory: the most that a step needs beyond the memory of the process before it, with each side in a
  separate process;
- ranks: the same as time, on two ranks;
- profile: what our steps spend their time on.

Without a GPU, one thread works; the bounds apply to that case. The figures are then seconds of
processor time, so that other processes have little effect.

`--check` exits with 1 if a ratio is below its bound, if our fastest run exceeds the lower bound by
more than the factor that a case allows, if gradients differ by more than 1e-5, or if ours needs
more memory.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.recorded import save
from benchmarks.step_growth import growth
from grpo_ext.demo.smollm2 import WheelMissing, wheel_folder
from grpo_ext.run.ranks import leave_ranks
from tests.support.step_bench import SIDES, matrix_rate, measure, passes, peak_of, where_time_goes
from tests.support.step_work import CASES

MATRIX_RATE = "matrix rate at width 128, operations a second"
PARTS = ("time", "memory", "ranks", "profile")
RANK_CASES = (
    "countdown",
    "countdown, beta .04",
    "uneven, short",
    "uneven, short, beta .04",
)  # on two ranks
QUICK = ("countdown", "equal, all live", "uneven, short", "uneven, short, packed")
PROFILED = ("countdown", "uneven", "long prompts", "equal, all live")

Rows = dict[str, dict[str, Any]]


def timed(names: list[str], rounds: int, ranks: int = 1, keep: Any = lambda rows: None) -> Rows:
    """Return one row per case; the first rank prints each at once.

    Cases without a bound run half as often.
    """
    rows: Rows = {}
    for name in names:
        row = rows[name] = measure(
            CASES[name], rounds if CASES[name].bound else -(-rounds // 2), ranks
        )
        keep(rows)
        asked = [f"{row[key]:g} {key}" for key in ("asked", "at most") if row[key] is not None]
        verdict = f"  ({', '.join(asked)}: {'ok' if passes(row) else 'MISSED'})" if asked else ""
        if os.environ.get("RANK", "0") == "0":
            print(
                f"{name:26} TRL {row['TRL s']:7.2f} s  ours {row['ours s']:6.2f} s  "
                f"{row['ratio']:5.2f} x  tokens "
                f"{row['TRL tokens']:7} {row['ours tokens']:7}  gradient "
                f"{row['gradient']:.0e}  bound "
                f"{row['bound s']:.2f} s x {row['times the bound']:.2f}{verdict}",
                flush=True,
            )
    return rows


def memory(names: list[str]) -> Rows:
    """Return the peak memory of each case and side.

    Each is measured in a separate process that returns freed memory to the system at once.
    """
    found: Rows = {}
    for name in names:
        for side in SIDES:
            command = [sys.executable, "-m", "benchmarks.step", "--peak_of", name, side]
            environment = {
                **os.environ,
                "MALLOC_MMAP_THRESHOLD_": "65536",
                "MALLOC_TRIM_THRESHOLD_": "65536",
            }
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            )
            found.setdefault(name, {})[f"{side} MiB"] = float(done.stdout.split()[-1])
        print(
            (
                f"{name:26}  TRL {found[name]['TRL MiB']:.0f} MiB  ours "
                f"{found[name]['ours MiB']:.0f} MiB"
            ),
            flush=True,
        )
    return found


def on_two_ranks(names: list[str], rounds: int) -> Rows:
    """Return the rows of `timed`, measured on two processes."""
    print("two ranks:", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc_per_node",
            "2",
            "--rdzv_backend",
            "c10d",
        ]
        command += [
            "--rdzv_endpoint",
            "127.0.0.1:0",
            "-m",
            "benchmarks.step",
            "--rank_out",
            str(out),
            "--rounds",
            str(rounds),
        ]
        subprocess.run(
            [*command, "--case", *names], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        return json.loads(out.read_text())


def profiled(names: list[str]) -> Rows:
    """Return how our time is spent, by case."""
    found: Rows = {}
    for name in names:
        found[name] = shares = where_time_goes(CASES[name], "ours")
        print(
            f"{name}: " + ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items()),
            flush=True,
        )
    return found


def run(parts: list[str], names: list[str], rounds: int, keep: Any) -> dict[str, Any]:
    """Run all requested parts; `keep` gets the results so far after each."""
    found: dict[str, Any] = {}
    for part in parts:
        if part == "time":
            found["rows"] = timed(names, rounds, keep=lambda rows: keep({"rows": rows}))
        elif part == "memory":
            for name, row in memory(names).items():
                found.setdefault("rows", {}).setdefault(name, {}).update(row)
        elif part == "ranks":
            found["two ranks"] = on_two_ranks(
                [name for name in names if name in RANK_CASES], rounds
            )
        else:
            found["profile"] = profiled([name for name in names if name in PROFILED])
        keep(found)
    return found


def missed(found: dict[str, Any]) -> list[str]:
    """Return the cases that miss a bound; on two ranks, only the gradient has a bound."""
    bad = [
        name
        for name, row in found.get("rows", {}).items()
        if not passes({"asked": None, "gradient": 0.0, **row})
    ]
    return bad + [
        f"{name}, two ranks"
        for name, row in found.get("two ranks", {}).items()
        if row["gradient"] > 1e-5
    ]


def writer(out: Path | None) -> Any:
    """Return a function that writes figures to the file, and keeps those of other parts."""

    def write(found: dict[str, Any]) -> None:
        if out is None:
            return
        before = json.loads(out.read_text())["figures"] if out.exists() else {}
        rows = {
            n: {**before.get("rows", {}).get(n, {}), **row}
            for n, row in found.get("rows", {}).items()
        }
        rate = {MATRIX_RATE: matrix_rate(128)}
        save(out, {**rate, **before, **found, "rows": {**before.get("rows", {}), **rows}})

    return write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="times of a few small cases, two rounds"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument(
        "--case",
        nargs="+",
        choices=list(CASES),
        metavar="NAME",
        help=f"some of: {', '.join(CASES)}".replace("%", "%%"),
    )
    parser.add_argument(
        "--pretrained",
        action="store_true",
        help="SmolLM2-135M-Instruct instead of untrained models: times and memory, half an hour",
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, help="default: all; with --quick: time"
    )
    parser.add_argument("--rounds", type=int, help="counted runs of each side")
    parser.add_argument(
        "--growth", type=Path, metavar="PLOT", help="how seconds grow with length and group size"
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--peak_of", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rank_out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    rounds = args.rounds or (2 if args.quick else 5)
    names = [name for name, case in CASES.items() if case.pretrained == args.pretrained]
    if args.quick:
        names = list(QUICK)
    names = args.case or names
    if any(CASES[name].pretrained for name in names):
        try:
            wheel_folder()
        except WheelMissing as error:
            print(f"skipped: {error}")
            return
        rounds = args.rounds or 2
        args.parts = args.parts or ["time", "memory"]
    if args.peak_of:
        print(peak_of(*args.peak_of))
    elif args.rank_out:
        rows = timed(names, rounds, ranks=2)
        if os.environ["RANK"] == "0":
            args.rank_out.write_text(json.dumps(rows))
        leave_ranks()
    elif args.growth:
        found = {MATRIX_RATE: matrix_rate(128), **growth(args.growth, rounds)}
        if args.out:
            save(args.out, found)
    else:
        found = run(
            args.parts or (["time"] if args.quick else list(PARTS)), names, rounds, writer(args.out)
        )
        if args.check and missed(found):
            sys.exit(f"missed: {', '.join(missed(found))}")


if __name__ == "__main__":
    main()
