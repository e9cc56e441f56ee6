"""How long a run will take, from the log of a run of the same recipe in its `output_dir`."""

from pathlib import Path
from typing import Any

from grpo_ext.common.run_time import RunTime
from grpo_ext.observe.jsonl import read
from grpo_ext.observe.run_log import METRICS
from grpo_ext.recipe.difference import LENGTHS, SAVED, differences
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.run_plan import Plan

Row = dict[str, Any]
PHASE = "time/"  # beginning of the names of the seconds per step
BESIDE = ("time/evaluation", "time/checkpoint")  # phases that are not part of a step


def measured_time(recipe: Recipe, plan: Plan) -> RunTime | None:
    """Return how long the planned run takes, by the log of a run of the same recipe.

    The run may be in progress or finished, and may have had another length. `None` if `output_dir`
    has no log of two or more steps, or belongs to another recipe.
    """
    folder = Path(str(recipe.get("output_dir"))).expanduser()
    if not (folder / SAVED).is_file():
        return None
    if differences(recipe, folder).keys() - {*LENGTHS}:
        return None
    rows = list(read(folder / METRICS, faults=[]))
    step_seconds = mean_step(rows)
    if step_seconds is None:
        return None
    return RunTime(
        plan.steps,
        plan.evaluations,
        len(plan.checkpoints or ()),
        step_seconds,
        mean_evaluation(rows),
        mean_save(rows, plan.checkpoints or ()),
    )


def intervals(rows: list[Row]) -> list[tuple[int, Row]]:
    """Return the number of steps that each log of a training step is about, and the log."""
    found = []
    last_step = 0
    for row in rows:
        if number(row.get(f"{PHASE}train")) is not None and row["step"] > last_step:
            found.append((row["step"] - last_step, row))
            last_step = row["step"]
    return found


def mean_step(rows: list[Row]) -> float | None:
    """Return the mean seconds of a step, without the first log, whose steps are slower."""
    seconds = 0.0
    steps = 0
    for count, row in intervals(rows)[1:]:
        names = [name for name in row if name.startswith(PHASE) and name not in BESIDE]
        seconds += count * sum(number(row[name]) or 0.0 for name in names)
        steps += count
    return seconds / steps if steps else None


def mean_evaluation(rows: list[Row]) -> float | None:
    """Return the mean seconds of an evaluation on all held-out data sets; `None` without one."""
    by_step: dict[int, float] = {}
    for row in rows:
        for name in row:
            seconds = number(row[name])
            if name.startswith("eval_") and name.endswith("_runtime") and seconds is not None:
                by_step[row["step"]] = by_step.get(row["step"], 0.0) + seconds
    return sum(by_step.values()) / len(by_step) if by_step else None


def mean_save(rows: list[Row], checkpoints: tuple[int, ...]) -> float | None:
    """Return the mean seconds of a save; `None` if none was logged.

    Args:
        rows: the lines of the log.
        checkpoints: the steps after which the run saves.
    """
    seconds = 0.0
    last_step = 0
    for count, row in intervals(rows):
        seconds += count * (number(row.get("time/checkpoint")) or 0.0)
        last_step = row["step"]
    saves = sum(step < last_step for step in checkpoints)  # the next log has the seconds of a save
    return seconds / saves if saves else None


def number(value: object) -> float | None:
    """Return a number of a log that is not negative; `None` for anything else."""
    return float(value) if isinstance(value, int | float) and value >= 0 else None
