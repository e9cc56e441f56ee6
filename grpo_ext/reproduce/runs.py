"""The runs that claims need, as jobs: one for each run and seed."""

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_ext.common.files import write_atomically
from grpo_ext.common.foreign_files import read_text
from grpo_ext.recipe.folder import recipe_folder, recipe_path
from grpo_ext.recipe.load import Recipe, load_recipe
from grpo_ext.reproduce.claims import Claim, Experiment
from grpo_ext.reproduce.starts import as_words, model_of

STATE = "reproduce.json"  # in the folder of a job: its fingerprint, and whether it is done
START_UP = 4.0  # seconds that a tiny run spends before its first and after its last step
# settings of all runs
MEASURED = {"logging_steps": 1, "eval_strategy": "no", "eval_on_start": False}
# settings of tiny runs
QUIET = {
    "save_strategy": "steps",
    "save_steps": 20,
    "save_total_limit": 1,
    "disable_tqdm": True,
}


@dataclass(frozen=True, eq=False)
class Job:
    """A warm start or a training run, with one seed and its own folder."""

    name: str
    folder: Path
    inputs: Any  # JSON values; a finished job counts as done only if they have not changed
    module: str  # `start` or `grpo_ext.train`
    arguments: tuple[Any, ...]  # for `make_start`, or the recipe's path and its overrides
    needs: "Job | None" = None  # the job that must be done first
    seconds: float | None = None  # predicted time on one idle core; `None` if unknown

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the inputs of this job and of the job that it needs."""
        before = self.needs.fingerprint if self.needs else ""
        text = json.dumps([before, self.inputs], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def state(self) -> dict[str, Any]:
        """The state recorded in the job's folder; `{}` if there is none or it cannot be read."""
        try:
            text = read_text(self.folder / STATE, within=self.folder)
            state = json.loads(text)
        except (OSError, ValueError, RecursionError):
            return {}
        return state if isinstance(state, dict) else {}

    @property
    def is_done(self) -> bool:
        state = self.state
        if state.get("fingerprint") != self.fingerprint:
            return False
        return bool(state.get("done"))

    def begin(self) -> None:
        """Record that the job has begun or continues.

        If the folder is from a job with a different fingerprint, it is deleted first.

        Raises:
            ValueError: if the folder has files that this command did not write.
        """
        if self.folder.exists() and any(self.folder.iterdir()):
            if not self.state:
                raise ValueError(
                    f"{self.folder} has files that this command did not write. Remove them, or "
                    "pass another --folder."
                )
            if self.state.get("fingerprint") != self.fingerprint:
                shutil.rmtree(self.folder)
        self.record(done=False)

    def record(self, done: bool, seconds: float | None = None) -> None:
        """Write the job's state to its folder; if `seconds` is `None`, the recorded time stays."""
        if seconds is None:
            seconds = self.state.get("seconds", 0.0)
        state = {"fingerprint": self.fingerprint, "seconds": seconds, "done": done}
        write_atomically(self.folder / STATE, json.dumps(state) + "\n")


@dataclass
class Matrix:
    """Builds an experiment's jobs: one for each run and seed, and one for each starting model."""

    name: str
    experiment: Experiment
    folder: Path
    seeds: int
    config: str | None = None  # a recipe with another model, from which all runs start
    # command-line arguments that override keys of `config`
    overrides: list[str] = field(default_factory=list)
    max_steps: int | None = None  # ends every run after this many steps
    starts: dict[tuple[str, int], Job] = field(default_factory=dict)  # by name and seed

    @cached_property
    def base(self) -> Recipe:
        """The recipe that the runs are variations of: `config`, or the experiment's own."""
        if self.config is not None:
            return load_recipe(self.recipe_file, self.overrides)
        return load_recipe(self.recipe_file, as_words({"model_name_or_path": "model"}))

    @property
    def recipe_file(self) -> Path:
        if self.config is not None:
            return recipe_path(self.config)
        return recipe_folder() / self.experiment.recipe

    def jobs(self, claims: list[Claim]) -> list[Job]:
        """Return the jobs that `claims` need, without duplicates; start jobs precede their runs."""
        names: dict[str, None] = {}  # an ordered set
        for claim in claims:
            names |= dict.fromkeys(claim.runs)
        jobs: dict[Path, Job] = {}
        for seed in range(self.seeds):
            for name in names:
                run = self.run(name, seed)
                for job in (run.needs, run):
                    if job is not None:
                        jobs.setdefault(job.folder, job)
        return list(jobs.values())

    def run(self, name: str, seed: int) -> Job:
        """Return the job for run `name` and `seed`; it needs a start job unless `config` is set."""
        settings = self.settings(name, seed)
        folder = self.folder / self.name / f"{name}-seed{seed}"
        arguments = {**settings, "output_dir": folder}
        start = None
        if self.config is None:
            start_name = self.experiment.runs[name].start
            start = self.start(start_name, seed)
            model = model_of(self.experiment.starts[start_name], start.folder)
            arguments["model_name_or_path"] = model
        recipe = self.recipe_file.read_text(encoding="utf-8")
        overrides = [*self.overrides, *as_words(arguments)]
        return Job(
            name=f"{self.name} {name}, seed {seed}",
            folder=folder,
            inputs=[recipe, self.overrides, settings],
            module="grpo_ext.train",
            arguments=(str(self.recipe_file), overrides),
            needs=start,
            seconds=self.predicted(name),
        )

    def start(self, name: str, seed: int) -> Job:
        """Return the job that creates a tiny model; all runs that start from the model share it."""
        if (name, seed) in self.starts:
            return self.starts[name, seed]
        start = self.experiment.starts[name]
        folder = self.folder / self.name / f"start-{name}-seed{seed}"
        job = Job(
            name=f"{self.name} start {name}, seed {seed}",
            folder=folder,
            inputs=[start.model_dump(), seed],
            module="start",
            arguments=(start, self.experiment.recipe, folder, seed),
            seconds=start.seconds,
        )
        self.starts[name, seed] = job
        return job

    def settings(self, name: str, seed: int) -> dict[str, Any]:
        """Return the recipe keys that a run sets; `{times: F}` becomes F times the usual value."""
        run = self.experiment.runs[name]
        settings: dict[str, Any] = {}
        if self.config is None:
            settings |= {**QUIET, **self.experiment.tiny}
        for key, value in run.changes.items():
            if isinstance(value, dict) and value.keys() == {"times"}:
                unscaled = settings.get(key, self.base.get(key))
                value = unscaled * value["times"]
            settings[key] = value
        if self.config is None:
            settings |= run.tiny
        if self.max_steps is not None:
            settings["max_steps"] = self.max_steps
        settings |= MEASURED
        settings["seed"] = seed
        if self.config is not None:
            settings["seed"] += self.base.get("seed")
        return settings

    def predicted(self, name: str) -> float | None:
        """Predict the seconds that a tiny run takes on an idle core; `None` if `config` is set."""
        if self.config is not None:
            return None
        run = self.experiment.runs[name]
        if self.max_steps is None:
            return run.seconds
        tiny = {**self.experiment.tiny, **run.tiny}
        steps = tiny.get("max_steps", self.base.get("max_steps"))
        share = min(1.0, self.max_steps / steps)
        return START_UP + share * (run.seconds - START_UP)
