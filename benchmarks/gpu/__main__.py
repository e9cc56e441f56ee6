"""Measure all figures of a GPU with one command, the most important ones first.

    python -m benchmarks.gpu [--parts NAME ...] [--minutes 40] [--out FOLDER] [--wheels FOLDER]
                             [--again] [--vllm_python FILE] [--model PLACE] [--quick] [--dry_run]
                             [--check]

Needs torch for CUDA and this folder; `setup`, the first part, installs the rest where possible. No
models or data are downloaded: models have real shapes and random weights, and the tokenizer is made
here. Each part says what it predicts and by which formula, runs in a separate process that is
killed at its limit, and writes `PART.json`, `PART.log` and its lines of `table.md` as it goes. A
part that fails does not stop the next ones. What was measured is kept if the command is
interrupted; run it again to continue with the parts that have no result.

`--minutes` limits the whole call: where a command may take only ten minutes, run it several times
with `--minutes 9`. To continue on another machine, copy the folder of results there. `--dry_run`
runs the same parts at tiny size on a CPU. `--check` exits with 1 if a figure misses its bound or a
part has failed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

from benchmarks.gpu.child import command_of, environment, last_lines, run_limited
from benchmarks.gpu.parts import PARTS, Mode
from benchmarks.gpu.sheet import TABLE, Sheet

RESULTS = Path("benchmarks/results/gpu")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=list(PARTS),
        default=list(PARTS),
        metavar="NAME",
        help=", ".join(PARTS),
    )
    parser.add_argument("--minutes", type=float, default=40.0, help="of the whole call")
    parser.add_argument("--out", type=Path, help=f"folder of the results; default: {RESULTS}/CARD")
    parser.add_argument(
        "--wheels",
        type=Path,
        help="install from this folder of wheels (benchmarks.gpu.carry), not a registry",
    )
    parser.add_argument(
        "--vllm_python", type=Path, help="the Python of an environment that has vLLM"
    )
    parser.add_argument(
        "--model", type=Path, help="a pretrained model for `numerics`: a folder, or a GGUF file"
    )
    parser.add_argument("--again", action="store_true", help="also measure what has a result")
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds")
    parser.add_argument("--dry_run", action="store_true", help="on a CPU, at tiny size")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument(
        "--only", choices=list(PARTS), help=argparse.SUPPRESS
    )  # the process of a part
    args = parser.parse_args()
    mode = Mode(args.dry_run, args.quick, args.wheels, args.vllm_python, args.model)
    if args.only:
        PARTS[args.only].load()(mode, Sheet(args.out, args.only))
        return
    folder = args.out or RESULTS / card(mode)
    run_parts(args.parts, mode, folder, 60 * args.minutes, args.again)
    missed = [line for name in args.parts for line in Sheet(folder, name).missed()]
    print(f"table: {folder / TABLE}" + "".join(f"\nmissed: {line}" for line in missed), flush=True)
    sys.exit(1 if args.check and missed else 0)


def card(mode: Mode) -> str:
    """Return the name of the GPU as a folder's name; exit if there is no GPU."""
    import torch

    if mode.dry:
        return "dry-run"
    if not torch.cuda.is_available():
        sys.exit(
            "There is no GPU here: --dry_run tries every part on a CPU, and benchmarks.step "
            "measures the training phase."
        )
    return re.sub(r"[^A-Za-z0-9.]+", "-", torch.cuda.get_device_name()).strip("-")


def run_parts(names: list[str], mode: Mode, folder: Path, seconds: float, again: bool) -> None:
    """Run the parts in their order, for at most `seconds`."""
    start = time.monotonic()
    for name in (name for name in PARTS if name in names):
        part = PARTS[name]
        sheet = Sheet(folder, name)
        if sheet.data["status"] not in (None, "left out") and not (again or part.again):
            print(f"== {name}: {sheet.data['status']} in an earlier call", flush=True)
            continue
        if again or part.again:
            sheet.data["rows"] = {}
        left = seconds - (time.monotonic() - start)
        limit = part.dry if mode.dry else part.limit
        print(
            f"== {name}: {part.title}; at most {min(limit, left):.0f} s, {left:.0f} s left",
            flush=True,
        )
        if left < min(part.least, limit):
            sheet.end("left out", 0.0, limit)
            continue
        sheet.data["status"] = None
        sheet.save()
        run_part(name, mode, folder, limit, left)


def run_part(name: str, mode: Mode, folder: Path, limit: float, left: float) -> None:
    """Run one part in a separate process, and record how it ended."""
    begun = time.monotonic()
    log = folder / f"{name}.log"
    command = command_of(name, mode, folder, PARTS[name].vllm)
    code = run_limited(command, log, min(limit, left), environment(mode, PARTS[name].vllm))
    sheet = Sheet(folder, name)  # with what its process wrote
    if code == 0:
        status: str | None = "done"
    elif code is None:
        status = "over its limit" if limit <= left else None  # the next call goes on with it
    else:
        status = "failed"
    last = "" if code == 0 else last_lines(log)
    sheet.end(status, time.monotonic() - begun, limit, last)
    print("" if code == 0 else f"{last}\n", end="")
    print(f"== {name}: {status or 'cut off'}, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
