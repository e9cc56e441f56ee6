"""A run as its folder tells it: metrics, completions, recipe, versions, alarms. Also of a run that still goes on.

Nothing of it is trusted: what is no row, no recipe or no `run.json` is left out and named in `faults`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import yaml

from grpo_ext.common.files import checkpoints
from grpo_ext.common.share import in_share
from grpo_ext.observe.jsonl import parts, read, row_of
from grpo_ext.observe.run_log import METRICS, RUN, SAMPLE, SAMPLES

Row = dict[str, Any]


@dataclass
class StepFigures:
    """Means over the training groups of each step, by reward (`reward`: the weighted sum), from rows as they were written."""

    steps: list[int] = field(default_factory=list)  # those that have groups
    mean: dict[str, list[float | None]] = field(default_factory=dict)  # of each step: the mean of its groups' means
    spread: dict[str, list[float | None]] = field(default_factory=dict)  # and of their (population) deviations
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)  # lowest and highest that a completion got
    _step: int | None = None
    _groups: dict[int, list[dict[str, float | None]]] = field(default_factory=dict)  # of the step that is read

    def add(self, row: Row) -> None:
        """Take the next row."""
        if row["mode"] != "train":
            return
        if row["step"] != self._step:
            self.end()
            self._step = row["step"]
        self._groups.setdefault(row["group"], []).append({"reward": row["reward"], **row["rewards"]})

    def end(self) -> None:
        """Close the last step."""
        if not self._groups or self._step is None:
            return
        groups = list(self._groups.values())
        for name in {**self.mean, **groups[0][0]}:
            found = [[value for row in group if (value := row.get(name)) is not None] for group in groups]
            scored = [values for values in found if values]
            for column, figure in ((self.mean, fmean), (self.spread, pstdev)):
                means = column.setdefault(name, [None] * len(self.steps))
                means.append(fmean(figure(values) for values in scored) if scored else None)
            if ends := [value for values in scored for value in values] + list(self.bounds.get(name, ())):
                self.bounds[name] = min(ends), max(ends)
        self.steps.append(self._step)
        self._groups = {}


@dataclass
class RunData:
    """What is known of a run."""

    name: str  # short, and different from the other runs' names
    folder: Path  # where the logs lie
    metrics: list[Row]  # of `metrics.jsonl`, or of the newest `trainer_state.json` where there is no such file
    samples: list[Row] = field(default_factory=list)  # of all prompts or of a share, in the order of their making
    total_samples: int = 0  # how many there are in the logs
    figures: StepFigures = field(default_factory=StepFigures)  # by step, what only the completions tell
    recipe: Row = field(default_factory=dict)  # `recipe.yaml`; empty where it is missing
    about: Row = field(default_factory=dict)  # `run.json`; empty where it is missing
    faults: list[str] = field(default_factory=list)  # sentences on what could not be read

    @property
    def alarms(self) -> list[Row]:
        return [row for row in self.metrics if isinstance(row.get("alarm"), str)]

    @property
    def rewards(self) -> list[Row]:
        """Name, weight and options of each reward."""
        found = [row for row in mappings(self.about.get("rewards")) if isinstance(row.get("name"), str)]
        return found or [{"name": name} for name in (self.samples[0]["rewards"] if self.samples else ())]

    @property
    def outcome(self) -> str | None:
        """The reward that says whether a problem is solved: the one that the run took, else its first."""
        names = [reward["name"] for reward in self.rewards]
        return self.about.get("outcome") if self.about.get("outcome") in names else next(iter(names), None)

    @property
    def pass_threshold(self) -> float:
        """The outcome from which a completion counts as right, as in training."""
        found = self.recipe.get("pass_threshold", self.about.get("pass_threshold"))
        return found if isinstance(found, int | float) else 1.0


def read_run(path: str | Path, name: str | None = None, max_samples: int = 50_000) -> RunData:
    """Read the run in `path`, or in the folder `grpo` below it, as the demos have it; `FileNotFoundError` if there is none.

    Of a run with more than about `max_samples` completions, those of a share of the prompts are kept, each prompt in all its
    steps.
    """
    folder = find_folder(Path(path).expanduser())
    run = RunData(name or short_name(folder), folder, [])
    run.recipe, run.about = (read_mapping(folder / file, run.faults) for file in ("recipe.yaml", RUN))
    if parts(folder / METRICS):
        run.metrics = list(read(folder / METRICS, faults=run.faults))
    else:
        rows = mappings(read_mapping(state_files(folder)[-1], run.faults).get("log_history"))
        run.metrics = [row for row in rows if isinstance(row.get("step"), int)]
    share = 1.0
    for row in read(folder / SAMPLES, SAMPLE, run.faults):
        run.figures.add(row)
        run.total_samples += 1
        if in_share(row["prompt_id"], share):
            run.samples.append(row)
        while len(run.samples) > max_samples:
            share *= 0.9
            run.samples = [row for row in run.samples if in_share(row["prompt_id"], share)]
    run.figures.end()
    return run


def find_folder(path: Path) -> Path:
    for folder in (path, path / "grpo"):
        if parts(folder / METRICS) or state_files(folder):
            return folder
    wrong = f"there is no {METRICS} in it, which `grpo-ext train` writes into its output_dir."
    raise FileNotFoundError(f"{path} holds no run: {wrong}")


def short_name(folder: Path) -> str:
    return folder.parent.name if folder.name == "grpo" and folder.parent.name else folder.resolve().name


def distinct(names: list[str]) -> list[str]:
    """The names with a number behind those that occur twice."""
    return [f"{name} ({names[:i].count(name) + 1})" if names.count(name) > 1 else name for i, name in enumerate(names)]


def state_files(folder: Path) -> list[Path]:
    """Every `trainer_state.json` of a run, the one of the most steps last."""
    found = [path / "trainer_state.json" for path in [*checkpoints(folder), folder]]
    return [path for path in found if path.is_file()]


def mappings(value: Any) -> list[Row]:
    """Those parts of a list that are mappings."""
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def read_mapping(path: Path, faults: list[str]) -> Row:
    """A YAML or JSON file as a mapping; empty if there is none, or none that can be read, which `faults` is told."""
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return row_of(text)
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ValueError("it has aliases, with which a few lines make a file without end")
        return row_of(json.dumps(yaml.safe_load(text), default=str))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        faults.append(f"{path} cannot be read ({str(error).splitlines()[0]}).")
        return {}
