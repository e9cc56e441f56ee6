"""How much time and space do verified checkpoints and logs take, compared with TRL's?

    python -m benchmarks.checkpoints [--quick] [--check] [--out FILE]

Trains a model of 57 million parameters (4 million with `--quick`) for two steps, saves it a few
times, and times each part of saving. TRL writes weights, optimizer, schedule and random states. We
also write the state of the run, flush all files to the disk, and hash them. For the logs, the
figure is the share of a step's time that is spent on writing lines, in a run of the tiny model that
logs all 16 completions of each step. `--check` exits with 1 if our part adds more than 5 % to the
size, if hashing is slower than 100 MB/s, or if logging takes more than 2 % of the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from trl import GRPOTrainer

from benchmarks.recorded import save
from grpo_ext.observe.jsonl import JsonLines
from grpo_ext.tiny.model import build_model
from grpo_ext.trainer import manifest
from grpo_ext.trainer.samples import Samples
from tests.support.fault_runs import build_start, make, work_folder

BIG: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
}
LESS: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}


@contextmanager
def timed(owner: Any, function: Callable[..., Any], spent: dict[str, float]) -> Iterator[None]:
    """Add the seconds of all calls of a function of `owner` to `spent`, under its name."""
    name = function.__name__

    def measured(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

    setattr(owner, name, measured)
    try:
        yield
    finally:
        setattr(owner, name, function)


def saving(model: Path, out: Path, times: int) -> dict[str, Any]:
    """Return medians over `times` checkpoints: seconds of their parts, and bytes."""
    quiet: dict[str, Any] = {
        "eval_strategy": "no",
        "group_filter": "off",
        "curriculum": "none",
        "beta": 0.0,
        "sync_ref_model": False,
    }
    trainer = make(
        model,
        out,
        max_steps=2,
        save_strategy="no",
        num_iterations=1,
        steps_per_generation=2,
        **quiet,
    )
    trainer.train()
    rounds = []
    for _ in range(times):
        spent: dict[str, float] = {}
        with (
            timed(GRPOTrainer, GRPOTrainer._save_checkpoint, spent),
            timed(manifest, manifest.flush, spent),
            timed(manifest, manifest._hashes, spent),
        ):
            began = time.perf_counter()
            trainer._save_checkpoint(trainer.model, None)
            whole = time.perf_counter() - began
        rest = whole - sum(spent.values())
        rounds.append(
            {
                "trl": spent["_save_checkpoint"],
                "flush": spent["flush"],
                "hash": spent["_hashes"],
                "state": rest,
            }
        )
    folder = manifest.checkpoints(out)[-1]
    sizes = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    ours = sum(
        size
        for name, size in sizes.items()
        if name.startswith("grpo_state") or name == manifest.MANIFEST
    )
    seconds = {part: round(statistics.median(one[part] for one in rounds), 3) for part in rounds[0]}
    hashed = (sum(sizes.values()) - sizes[manifest.MANIFEST]) / statistics.median(
        one["hash"] for one in rounds
    )
    began = time.perf_counter()
    assert manifest.what_is_wrong(folder) is None
    return {
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "seconds": seconds,
        "seconds_to_verify": round(time.perf_counter() - began, 3),
        "megabytes_of_trl": round((sum(sizes.values()) - ours) / 1e6, 2),
        "megabytes_of_ours": round(ours / 1e6, 3),
        "hashed_megabytes_per_second": round(hashed / 1e6),
    }


def logging_share(model: Path, out: Path, steps: int) -> float:
    """Return the share of the steps' time that is spent on appending lines to the logs."""
    quiet: dict[str, Any] = {
        "eval_strategy": "no",
        "group_filter": "off",
        "curriculum": "none",
        "save_strategy": "no",
        "logging_steps": 1,
    }
    trainer = make(model, out, max_steps=steps, **quiet)
    spent: dict[str, float] = {}
    with timed(JsonLines, JsonLines.append, spent), timed(Samples, Samples.hand_out, spent):
        began = time.perf_counter()
        trainer.train()
        whole = time.perf_counter() - began
    return sum(spent.values()) / whole  # what is handed out is counted twice where it is appended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller model, fewer times")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    with work_folder() as folder:
        tiny = build_start(Path(folder) / "tiny")
        big = Path(folder) / "big"
        tokenizer = AutoTokenizer.from_pretrained(tiny)
        tokenizer.save_pretrained(big)
        build_model(tokenizer, **(LESS if args.quick else BIG)).save_pretrained(big)
        found = saving(big, Path(folder) / "saved", 3 if args.quick else 5)
        found["share_of_logging"] = round(
            logging_share(tiny, Path(folder) / "logged", 10 if args.quick else 40), 4
        )
    print(json.dumps(found, indent=1))
    if args.out:
        save(args.out, found)
    bounds = {
        "at most 5 % larger": found["megabytes_of_ours"] <= 0.05 * found["megabytes_of_trl"],
        "hashes 100 MB/s": found["hashed_megabytes_per_second"] >= 100,
        "logs for at most 2 % of the time": found["share_of_logging"] <= 0.02,
    }
    for bound, held in bounds.items():
        print(f"{'yes' if held else 'NO'}: {bound}")
    if args.check and not all(bounds.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
