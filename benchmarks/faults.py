"""What happens to a run when something breaks, and what is lost?

    python -m benchmarks.faults [--quick] [--check] [--out FILE]

Each fault hits the run of `fault_runs.py`, two epochs with every stateful feature on. Where
possible, the weights, optimizer, metrics and samples of the run are compared bit for bit with those
of an undisturbed run. `--quick` leaves out the trials on two ranks. `--check` exits with 1 if
anything is lost that should not be.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from benchmarks.fault_disks import full_disk, read_only
from benchmarks.recorded import save
from grpo_ext import GRPOExtTrainer
from grpo_ext.observe import jsonl
from grpo_ext.trainer.manifest import checkpoints, newest_whole
from tests.support.fault_runs import (
    STEPS,
    Bench,
    KillAt,
    Outcome,
    build_start,
    finite,
    last_metrics,
    left_by,
    letters,
    quiet,
    work_folder,
)

DYING = """
import os
from grpo_ext.rewards import register

@register("dying", needs_cpu=True)
def dying(completions):
    '''Dies with its process at the first text that begins with some letters.'''
    if any(text[:1] in "aeio" for text in completions):
        os.kill(os.getpid(), 9)
    return [1.0 for _ in completions]
"""


def kill(bench: Bench) -> Outcome:
    out, codes = bench.run("kill", callbacks=(KillAt(6),))
    _, again = bench.run("kill")
    gone = bench.lost(out)
    return (
        "started again, it went on from step 5",
        gone,
        codes == [-9] and again == [0] and gone == "nothing",
    )


def dead_rank(bench: Bench) -> Outcome:
    out, codes = bench.run("rank", 2, callbacks=(KillAt(6, rank=1),))
    _, again = bench.run("rank", 2)
    gone = bench.lost(out, 2)
    told = "the other was ended, as the launcher does; started again, they went on from step 5"
    return told, gone, codes[1] == -9 and codes[0] != 0 and again == [0, 0] and gone == "nothing"


def damaged(bench: Bench, name: str, damage: Callable[[Path], None]) -> Outcome:
    out, _ = bench.run(name, callbacks=(KillAt(7),))
    damage(out / "checkpoint-6")
    told = newest_whole(out)
    _, again = bench.run(name)
    gone = bench.lost(out)
    right = told == str(out / "checkpoint-5") and again == [0] and gone == "nothing"
    return (
        "it was recognised by its manifest, and the run went on from the one before it",
        gone,
        right,
    )


def truncated(bench: Bench) -> Outcome:
    return damaged(
        bench, "truncated", lambda folder: os.truncate(folder / "model.safetensors", 100_000)
    )


def flipped(bench: Bench) -> Outcome:
    def flip(folder: Path) -> None:
        path = folder / "optimizer.pt"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return damaged(bench, "flipped", flip)


def inf_reward(bench: Bench) -> Outcome:
    calls = []

    def sometimes(completions: list[str], **columns: Any) -> list[float]:
        calls.append(1)
        return [
            math.inf if len(calls) == 3 and i == 2 else score
            for i, score in enumerate(letters(completions))
        ]

    out, codes = bench.run("inf", reward=sometimes)
    failed = last_metrics(out).get("rewards/sometimes/failed")
    return (
        f"rewards/sometimes/failed: {failed}; weights stay finite",
        "one row's score",
        codes == [0] and failed == 1 and finite(out),
    )


def nan_logprob(bench: Bench) -> Outcome:
    class Spoils(TrainerCallback):
        def __init__(self, trainer: GRPOExtTrainer):
            def hook(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
                spoilt = torch.is_grad_enabled() and trainer.state.global_step == 5
                return output * math.nan if spoilt else output

            trainer.model.model.norm.register_forward_hook(hook)

    out, codes = bench.run("nan", callbacks=(Spoils,))
    skipped = last_metrics(out).get("skipped_steps")
    right = codes == [0] and skipped == 1 and finite(out)
    return f"skipped_steps: {skipped}; weights and optimizer unchanged by it", "one step", right


def hanging_reward(bench: Bench) -> Outcome:
    def bad(text: str) -> bool:
        return sum(map(ord, text)) % 5 == 0

    def hangs(completions: list[str], **columns: Any) -> list[float]:
        if any(map(bad, completions)):
            time.sleep(600)
        return letters(completions)

    settings: dict[str, Any] = {
        "reward_timeout": 0.02,
        "reward_max_failure_rate": 1.0,
        "max_steps": 4,
        "group_filter": "off",
    }
    out, codes = bench.run("hang", reward=hangs, **settings)
    rows = [
        (bad(line["text"]), line["rewards"]["hangs"]) for line in jsonl.read(out / "samples.jsonl")
    ]
    given_up = [score for is_bad, score in rows if is_bad]
    right = codes == [0] and finite(out) and len(given_up) > 0 and set(given_up) == {None}
    right = right and None not in [score for is_bad, score in rows if not is_bad]
    return (
        f"given up after its time; {len(rows) - len(given_up)} of {len(rows)} rows scored",
        "the scores of rows that hang",
        right,
    )


def dead_worker(bench: Bench) -> Outcome:
    from grpo_ext.rewards.reward_specs import resolve_rewards

    plugin = bench.folder / "dying.py"
    plugin.write_text(DYING)
    rewards, _ = resolve_rewards(["dying"], plugins=[str(plugin)])
    settings: dict[str, Any] = {
        "reward_workers": 1,
        "reward_max_failure_rate": 1.0,
        "max_steps": 4,
        "group_filter": "off",
    }
    out, codes = bench.run("worker", reward=rewards[0], **settings)
    failed = last_metrics(out).get("rewards/dying/failed", 0)
    rows = [line["rewards"]["dying"] for line in jsonl.read(out / "samples.jsonl")]
    right = codes == [0] and failed > 0 and rows.count(1.0) > 0 and rows.count(None) > 0
    return (
        f"replaced each time: {rows.count(1.0)} of {len(rows)} rows scored",
        "the scores of rows that kill it",
        right,
    )


FAULTS: dict[str, Callable[[Bench], Outcome]] = {
    "SIGKILL in a step": kill,
    "dead rank of two": dead_rank,
    "truncated checkpoint": truncated,
    "flipped byte in a checkpoint": flipped,
    "disk full for five steps": full_disk,
    "read-only folder and checkpoint": read_only,
    "reward of inf": inf_reward,
    "NaN log-probs in a step": nan_logprob,
    "reward that hangs": hanging_reward,
    "reward that kills its worker": dead_worker,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one rank only")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if something is lost that should not be"
    )
    parser.add_argument("--only", help="only the faults with this in their name")
    parser.add_argument("--out", type=Path, help="write the table as JSON")
    args = parser.parse_args()
    quiet()
    table = []
    with work_folder() as folder:
        bench = Bench(Path(folder), build_start(Path(folder) / "model"), {})
        for ranks in (1,) if args.quick else (1, 2):
            out, codes = bench.run(f"whole-{ranks}", ranks)
            if any(codes):
                raise RuntimeError((out / "rank-0.log").read_text()[-3000:])
            bench.wanted[ranks] = left_by(out)
            assert checkpoints(out)[-1].name == f"checkpoint-{STEPS}"
        print("| fault | what happened | lost | as it should be |\n|---|---|---|---|")
        for name, fault in FAULTS.items():
            if (args.quick and fault is dead_rank) or (args.only or name) not in name:
                continue
            happened, gone, right = fault(bench)
            table.append(
                {"fault": name, "happened": happened, "lost": gone, "as_it_should_be": right}
            )
            print(f"| {name} | {happened} | {gone} | {'yes' if right else 'NO'} |", flush=True)
    if args.out:
        save(args.out, table)
    if args.check and not all(row["as_it_should_be"] for row in table):
        sys.exit(1)


if __name__ == "__main__":
    main()
