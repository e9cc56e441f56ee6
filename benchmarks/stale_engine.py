"""Does a run notice that its sampling engine has other weights than the trainer?

    python -m benchmarks.stale_engine [--quick] [--check] [--out FILE]

A tiny model trains for three steps with a sampler in another process, to which the weights are sent
after each step. In the first of three runs, every update arrives. In the second, one update does
not arrive, at a learning rate of 1e-6, where log-probs hardly show it. In the third, only the
embedding keeps its first values. All three are repeated with `overlap: one_step`. A run that
notices the fault ends with an error and a complete checkpoint. `--check` exits with 1 if a faulty
run continued, or if the sound one did not finish. vLLM is not needed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import datasets
from transformers.utils import logging as transformers_logging

from benchmarks.invariance import tiny_model
from benchmarks.recorded import save
from grpo_ext import GRPOExtTrainer
from grpo_ext.trainer.manifest import newest_whole
from grpo_ext.vllm import EngineFailure
from tests.support.stale_engine import keep_first_tensor, send_only_first_weights, trainer_of


@dataclass(frozen=True)
class Case:
    """A run, and what happens to the updates on their way to the sampler.

    Attributes:
        name: what is done, in words.
        fault: keeps an update from the sampler of a trainer; `None` in a sound run.
        settings: the settings of the run.
    """

    name: str
    fault: Callable[[GRPOExtTrainer], None] | None
    settings: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("every update arrives", None),
    Case("one update does not arrive, learning rate 1e-6", send_only_first_weights),
    Case(
        "one tensor is never updated, learning rate 1e-2",
        keep_first_tensor,
        {"learning_rate": 1e-2},
    ),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        case: the name of its case.
        overlap: the recipe key.
        steps: optimizer steps that it took.
        difference: the largest logged mean difference of log-probs after a sync.
        error: the first sentence of the error that ended it; empty if it finished.
        checkpoint: the name of the complete checkpoint that it left; empty if it left none.
        right: whether a faulty run ended with an error and a checkpoint, or a sound one without.
    """

    case: str
    overlap: str
    steps: int
    difference: float
    error: str
    checkpoint: str
    right: bool


def run(model: Path, out: Path, case: Case, overlap: str) -> Outcome:
    """Train, and return the outcome."""
    trainer = trainer_of(model, out, overlap=overlap, **case.settings)
    if case.fault is not None:
        case.fault(trainer)
    error = ""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the run's own lines
            trainer.train()
    except EngineFailure as failure:
        error = str(failure).partition(". ")[0]
    differences = [
        line["sampling/sync_difference"]
        for line in trainer.state.log_history
        if "sampling/sync_difference" in line
    ]
    whole = newest_whole(out) if error else None
    checkpoint = Path(whole).name if whole else ""
    right = bool(error and checkpoint) if case.fault else not error
    steps = trainer.state.global_step
    largest = max(differences, default=0.0)
    return Outcome(case.name, overlap, steps, largest, error, checkpoint, right)


def as_text(outcome: Outcome) -> str:
    """Return an outcome in two lines, or three with an error."""
    ended = f"reached its end at step {outcome.steps}"
    if outcome.error:
        ended = f"ended at step {outcome.steps}, leaving {outcome.checkpoint or 'no checkpoint'}"
    lines = [
        f"{outcome.case} (overlap: {outcome.overlap})",
        f"    {ended}; log-probs logged as at most {outcome.difference:.1e} apart",
    ]
    if outcome.error:
        lines.append(f"    {outcome.error}.")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without `overlap: one_step`")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a fault went unseen")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore", FutureWarning)
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder) / "model")
        for overlap in ("off",) if args.quick else ("off", "one_step"):
            for i, case in enumerate(CASES):
                outcome = run(model, Path(folder) / f"{overlap}-{i}", case, overlap)
                outcomes.append(outcome)
                print(as_text(outcome), flush=True)
    if args.out:
        save(args.out, [asdict(outcome) for outcome in outcomes])
    wrong = [outcome for outcome in outcomes if not outcome.right]
    print(f"{len(outcomes)} runs, {len(wrong)} of them not as they should be")
    return int(args.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
