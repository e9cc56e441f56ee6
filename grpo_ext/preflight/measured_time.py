"""Estimate how long a run will take, from the log of a run of the same recipe in `output_dir`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_ext.common.run_time import BESIDE, RunTime
from grpo_ext.observe.jsonl import read
from grpo_ext.observe.log_files import METRICS
from grpo_ext.recipe.difference import LENGTHS, SAVED, differences
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.run_plan import Plan

PHASE = "time/"  # prefix of the metrics that hold the seconds per step of a phase


@dataclass
class LoggedTime:
    """The number and total duration of steps, evaluations and saves in an untrusted log."""

    last_step: int = 0  # the step of the last training line
    steps: int = 0  # not counting the steps of the first line, which are slower
    step_seconds: float = 0.0
    evaluations: int = 0
    evaluation_seconds: float = 0.0
    last_evaluation: int = -1  # the step of the last evaluation
    saves: int = 0  # number of lines with the duration of one or more saves
    save_seconds: float = 0.0

    def add(self, row: dict[str, Any]) -> None:
        """Add one line of the log: a training line, or an evaluation on one dataset.

        The steps of the first training line are not counted, because they are slower. Training
        lines up to `last_step`, which a resumed run writes again, are skipped. Successive
        evaluations at the same step count as one.
        """
        step = row["step"]
        for name in row:
            if name.startswith("eval_") and name.endswith("_runtime"):
                self.evaluation_seconds += number(row[name])
                self.evaluations += step != self.last_evaluation
                self.last_evaluation = step
        if "time/train" not in row or step <= self.last_step:
            return
        count = step - self.last_step
        if self.last_step:
            self.steps += count
            for name in row:
                if name.startswith(PHASE) and name.removeprefix(PHASE) not in BESIDE:
                    self.step_seconds += count * number(row[name])
        save_seconds = count * number(row.get("time/checkpoint"))
        self.saves += save_seconds > 0
        self.save_seconds += save_seconds
        self.last_step = step


def measured_time(recipe: Recipe, plan: Plan) -> RunTime | None:
    """Estimate how long the planned run will take, from the log of a run of this recipe.

    The logged run may be in progress or finished, and may be shorter or longer than planned. Return
    `None` if `output_dir` contains no run of this recipe, or if its log has fewer than two training
    lines. `recipe` is adapted to this machine in place.
    """
    folder = Path(str(recipe.get("output_dir"))).expanduser()
    if not (folder / SAVED).is_file():
        return None
    if differences(recipe, folder).keys() - {*LENGTHS}:
        return None
    logged = LoggedTime()
    for row in read(folder / METRICS, faults=[]):
        logged.add(row)
    if logged.steps == 0:
        return None
    return RunTime(
        plan.steps,
        plan.evaluations,
        len(plan.checkpoints or ()),
        logged.step_seconds / logged.steps,
        logged.evaluation_seconds / logged.evaluations if logged.evaluations else None,
        logged.save_seconds / logged.saves if logged.saves else None,
    )


def number(value: object) -> float:
    """Return a logged value as a float, or 0 if the value is negative or not a number."""
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
