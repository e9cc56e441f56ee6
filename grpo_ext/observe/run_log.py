"""Write the logs of a run: `metrics.jsonl`, `samples.jsonl` and `run.json` in its `output_dir`.

docs/report.md lists their fields, and `grpo_ext.observe.jsonl` explains how they survive crashes.
Only the main process writes them.
"""

import json
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import TrainerCallback

from grpo_ext.common.files import write_atomically
from grpo_ext.common.foreign_files import read_text, size_of
from grpo_ext.common.hashes import in_share
from grpo_ext.common.modules import versions
from grpo_ext.observe.jsonl import JsonLines, parts, read, row_of
from grpo_ext.observe.log_files import METRICS, RUN, SAMPLES


@dataclass(eq=False)
class RunLog(TrainerCallback):
    """Trainer callback that writes the logs of one training run.

    A hash of the step and the group number decides whether the completions of a group are written,
    so a resumed run selects the same groups.
    """

    share: float = 1.0  # fraction of the groups whose completions are written, 0 to 1
    # entries of `run.json` in addition to `versions` and `starts`
    about: dict[str, Any] = field(default_factory=dict)
    metrics: JsonLines | None = None
    samples: JsonLines | None = None
    _summed_up: bool = False  # whether the log ends with the summary of a complete run

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Prepare the logs for a new or resumed run, and write `run.json`.

        If the run starts at step 0, earlier logs are moved aside (see `set_aside`). Otherwise,
        the lines of all steps after the checkpoint are removed.
        """
        if not state.is_world_process_zero:
            return
        assert args.output_dir is not None
        folder = Path(args.output_dir)
        if state.global_step == 0:
            set_aside(folder)
        self.metrics = JsonLines(folder / METRICS)
        self.samples = JsonLines(folder / SAMPLES)
        self.metrics.cut(state.global_step)
        self.samples.cut(state.global_step)
        last_rows = deque(read(self.metrics.path), maxlen=1)
        self._summed_up = any("train_runtime" in row for row in last_rows)
        self._write_about(folder, state.global_step, args)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs:
            return
        will_continue = state.global_step < state.max_steps
        if "train_runtime" in logs and (will_continue or self._summed_up):
            return
        figures = dict(logs)
        last_log = state.log_history[-1] if state.log_history else {}
        if last_log.keys() >= logs.keys():  # restore metrics that other callbacks removed
            figures = {**last_log, **logs}
            if "step" not in logs:
                figures.pop("step", None)
        self.note(state.global_step, figures)

    def note(self, step: int, figures: dict[str, Any]) -> None:
        """Append a line with the step, the current time and `figures` to `metrics.jsonl`.

        A metric named `step`, `time` or `not_finite` is written as `logged/NAME`. Nothing is
        written before training begins, or by processes other than the main one.
        """
        row: dict[str, Any] = {"step": step, "time": round(time.time(), 3)}
        for name, figure in figures.items():
            if name in ("step", "time", "not_finite"):
                name = f"logged/{name}"
            row[name] = figure
        if self.metrics is not None:
            self.metrics.append([row])

    def wants(self, step: int, group: int) -> bool:
        """Return whether to write the completions of a group."""
        return in_share(f"{step}:{group}", self.share)

    def on_samples(self, rows: list[dict[str, Any]]) -> None:
        """Append the rows of the groups for which `wants` returns true to `samples.jsonl`.

        Called by the trainer on the main process, with one row per completion. Nothing is written
        before training begins.
        """
        if self.samples is None:
            return
        wanted_rows = [row for row in rows if self.wants(row["step"], row["group"])]
        self.samples.append(wanted_rows)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        for log in (self.metrics, self.samples):
            if log is not None:
                log.sync()

    def _write_about(self, folder: Path, step: int, args: TrainingArguments) -> None:
        """Write `run.json` with `about`, the package versions, and an entry for each start.

        The entries of earlier starts are kept unless `step` is 0 or the file cannot be read.
        """
        earlier_starts = []
        if step > 0:
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                text = read_text(folder / RUN, within=folder)
                earlier_starts = list(row_of(text)["starts"])
        start = {
            "step": step,
            "time": round(time.time(), 3),
            "processes": args.world_size,
            "device": args.device.type,
        }
        about = {
            **self.about,
            "versions": versions(),
            "starts": [*earlier_starts, start],
        }
        text = json.dumps(about, indent=2, default=str)
        write_atomically(folder / RUN, f"{text}\n")


def set_aside(folder: Path, patterns: tuple[str, ...] = ()) -> None:
    """Move the logs of an earlier run, and its `run.json`, to a new folder `folder/earlier-N`.

    Does nothing if the logs are empty or missing and no file in `folder` matches `patterns`.

    Args:
        folder: the `output_dir` of the run.
        patterns: glob patterns for additional files to move, relative to `folder`.
    """
    old_files = []
    for log in (METRICS, SAMPLES):
        old_files += [part for part in parts(folder / log) if size_of(part, folder)]
    for pattern in patterns:
        old_files += folder.glob(pattern)
    if not old_files:
        return
    number = 1
    while os.path.lexists(folder / f"earlier-{number}"):
        number += 1
    aside = folder / f"earlier-{number}"
    aside.mkdir()
    for path in [*old_files, folder / RUN]:
        if os.path.lexists(path):
            path.replace(aside / path.name)
