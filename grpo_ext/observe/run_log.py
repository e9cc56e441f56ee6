"""The logs of a run: `metrics.jsonl`, `samples.jsonl` and `run.json` in its `output_dir`.

docs/report.md lists their fields, `grpo_ext.observe.jsonl` says how they survive crashes. Only the
main process writes.
"""

import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from transformers.trainer_callback import TrainerCallback

from grpo_ext.common.files import write_atomically
from grpo_ext.common.foreign_files import read_text, size_of
from grpo_ext.common.hash_sample import in_share
from grpo_ext.common.modules import versions
from grpo_ext.observe.json_row import row_of
from grpo_ext.observe.jsonl import JsonLines, parts, read

METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
RUN = "run.json"
LEARNT_NOTHING = "learnt_nothing"  # the alarm of a run that reached its end without having learnt
SAMPLE = {  # the fields that a line of samples.jsonl must have beside `step`, and their types
    "mode": str, "dataset": str, "prompt_id": str, "prompt": object, "group": int, "text": str,
    "rewards": dict, "reward": int | float | None, "advantage": int | float | None,
    "finish_reason": str, "length": int | float,
}  # fmt: skip


@dataclass(eq=False)
class RunLog(TrainerCallback):
    """Writes the logs of one training.

    Step and number of a group decide whether its completions are written, so a resumed run writes
    the same ones.
    """

    share: float = 1.0  # of the groups whose completions are written, 0 to 1
    max_mb: float = 256.0  # size in MiB at which a log continues in a new file
    about: dict[str, Any] = field(default_factory=dict)  # further entries of `run.json`
    metrics: JsonLines | None = None
    samples: JsonLines | None = None
    _summed_up: bool = False  # the log ends with the summary of a complete run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Cut the logs back to the step that the run resumes from; a new run moves old logs
        aside.
        """
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir)
        if state.global_step == 0:
            set_aside(folder)
        self.metrics, self.samples = (
            JsonLines(folder / name, self.max_mb) for name in (METRICS, SAMPLES)
        )
        for log in (self.metrics, self.samples):
            log.cut(state.global_step)
        last = deque(read(self.metrics.path), maxlen=1)
        self._summed_up = bool(last) and "train_runtime" in last[0]
        self._write_about(folder, state.global_step, args)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        # the run will continue, or was complete before
        part = state.global_step < state.max_steps or self._summed_up
        if logs and not ("train_runtime" in logs and part):
            # other callbacks remove figures from `logs`
            kept = state.log_history[-1] if state.log_history else {}
            more = {key: kept[key] for key in kept if key != "step" and kept.keys() >= logs.keys()}
            self.note(state.global_step, {**more, **logs})

    def note(self, step: int, figures: dict[str, Any]) -> None:
        """Add a line to `metrics.jsonl`. A figure named `step`, `time` or `not_finite` becomes
        `logged/NAME`.
        """
        own = {"step": step, "time": round(time.time(), 3)}
        figures = {
            f"logged/{key}" if key in (*own, "not_finite") else key: value
            for key, value in figures.items()
        }
        if self.metrics is not None:
            self.metrics.append([{**own, **figures}])

    def wants(self, step: int, group: int) -> bool:
        """Whether the completions of a group are written."""
        return in_share(f"{step}:{group}", self.share)

    def on_samples(self, rows: list[dict[str, Any]]) -> None:
        """Add lines to `samples.jsonl`; called by the trainer on the main process."""
        if self.samples is not None:
            self.samples.append([row for row in rows if self.wants(row["step"], row["group"])])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for log in filter(None, (self.metrics, self.samples)):
            log.sync()

    def _write_about(self, folder: Path, step: int, args: Any) -> None:
        """Write `run.json`: the rewards and data of the run, versions, and each start."""
        try:
            starts = list(row_of(read_text(folder / RUN, within=folder))["starts"]) if step else []
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            starts = []
        start = {
            "step": step,
            "time": round(time.time(), 3),
            "processes": args.world_size,
            "device": args.device.type,
        }
        about = {**self.about, "versions": versions(), "starts": [*starts, start]}
        write_atomically(folder / RUN, json.dumps(about, indent=2, default=str) + "\n")


def set_aside(folder: Path, more: tuple[str, ...] = ()) -> None:
    """Move the logs of an earlier run, and files that match the patterns `more`, to
    `folder/earlier-N`.
    """
    old = [
        part
        for name in (METRICS, SAMPLES)
        for part in parts(folder / name)
        if size_of(part, folder)
    ]
    old += [path for pattern in more for path in folder.glob(pattern)]
    if not old:
        return
    aside = next(path for i in count(1) if not os.path.lexists(path := folder / f"earlier-{i}"))
    aside.mkdir()
    for path in [*old, folder / RUN]:
        if os.path.lexists(path):
            path.replace(aside / path.name)
