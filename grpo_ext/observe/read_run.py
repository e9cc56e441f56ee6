"""A run as its folder tells it: metrics, completions, recipe, versions, alarms. Also of a run that still goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from grpo_ext.common.share import in_share
from grpo_ext.observe.jsonl import parts, read
from grpo_ext.observe.run_log import METRICS, RUN, SAMPLES
from grpo_ext.observe.spread import StepFigures

Row = dict[str, Any]


@dataclass
class RunData:
    """What is known of a run.

    Attributes:
        name: short, and different from the other runs' names.
        folder: where the logs lie.
        metrics: the lines of `metrics.jsonl`, or of the newest `trainer_state.json` where there is no such file.
        samples: completions, all of them or those of a share of the prompts, in the order in which they were made.
        total_samples: how many there are in the logs.
        figures: by step, what only the completions tell.
        recipe, about: `recipe.yaml` and `run.json`; empty where they are missing.
    """

    name: str
    folder: Path
    metrics: list[Row]
    samples: list[Row] = field(default_factory=list)
    total_samples: int = 0
    figures: StepFigures | None = None
    recipe: Row = field(default_factory=dict)
    about: Row = field(default_factory=dict)

    @property
    def alarms(self) -> list[Row]:
        return [row for row in self.metrics if "alarm" in row]

    @property
    def rewards(self) -> list[Row]:
        """Name, weight and options of each reward."""
        if found := self.about.get("rewards"):
            return found
        return [{"name": name} for name in (self.samples[0]["rewards"] if self.samples else ())]

    @property
    def outcome(self) -> str | None:
        """The reward that says whether a problem is solved."""
        return outcome_reward(self.recipe, [reward["name"] for reward in self.rewards], self.about)


def read_run(path: str | Path, name: str | None = None, max_samples: int = 50_000) -> RunData:
    """Read the run in `path`, or in the folder `grpo` below it, as the demos have it.

    Args:
        max_samples: about how many completions to keep. Of longer runs the completions of a share of the prompts are kept,
            each prompt in all its steps.

    Raises:
        FileNotFoundError: if there is no run.
    """
    folder = find_folder(Path(path).expanduser())
    recipe, about = read_mapping(folder / "recipe.yaml"), read_mapping(folder / RUN)
    if parts(folder / METRICS):
        metrics = list(read(folder / METRICS))
    else:
        metrics = json.loads(list(state_files(folder))[-1].read_text(encoding="utf-8"))["log_history"]
    run = RunData(name or short_name(folder), folder, metrics, recipe=recipe, about=about)
    outcome = run.outcome
    share = 1.0
    for row in read(folder / SAMPLES):
        if run.figures is None:
            run.figures = StepFigures(outcome or outcome_reward(recipe, list(row["rewards"])))
        run.figures.add(row)
        run.total_samples += 1
        if in_share(row["prompt_id"], share):
            run.samples.append(row)
        while len(run.samples) > max_samples:
            share *= 0.9
            run.samples = [row for row in run.samples if in_share(row["prompt_id"], share)]
    if run.figures is not None:
        run.figures.end()
    return run


def outcome_reward(recipe: Row, names: list[str], about: Row | None = None) -> str | None:
    """The reward that the recipe names, else the task's if the run has it, else what the run took, else its first."""
    if recipe.get("eval_outcome_reward") in names:
        return recipe["eval_outcome_reward"]
    if task := recipe.get("task"):
        from grpo_ext.tasks import get_task_class

        try:
            wanted = get_task_class(task).outcome_reward
        except ValueError:
            wanted = None
        if wanted in names:
            return wanted
    taken = (about or {}).get("outcome")
    return taken if taken in names else names[0] if names else None


def find_folder(path: Path) -> Path:
    for folder in (path, path / "grpo"):
        if parts(folder / METRICS) or list(state_files(folder)):
            return folder
    raise FileNotFoundError(
        f"{path} holds no run: there is no {METRICS} in it, which `grpo-ext train` writes into its output_dir."
    )


def short_name(folder: Path) -> str:
    return folder.parent.name if folder.name == "grpo" and folder.parent.name else folder.resolve().name


def distinct(names: list[str]) -> list[str]:
    """The names with a number behind those that occur twice."""
    return [f"{name} ({names[:i].count(name) + 1})" if names.count(name) > 1 else name for i, name in enumerate(names)]


def state_files(folder: Path) -> Iterator[Path]:
    """Every `trainer_state.json` of a run, the one of the most steps last."""
    found = folder.glob("checkpoint-*/trainer_state.json")
    yield from sorted(found, key=lambda path: int(path.parent.name.rpartition("-")[2]))
    yield from folder.glob("trainer_state.json")


def read_mapping(path: Path) -> Row:
    """A YAML or JSON file as a mapping, empty if there is none."""
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    return found if isinstance(found, dict) else {}
