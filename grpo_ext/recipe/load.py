"""Load recipes from YAML and the command line, and check their values.

`load_recipe` raises one error that lists every problem that can be found without a model, a GPU or
the data. It imports neither TRL nor torch if TRL's fields are known (see `grpo_ext.recipe.keys`),
so an invalid recipe is rejected quickly. The dataclasses are built on demand, because those of TRL
depend on the machine: a `GRPOConfig` with bfloat16 cannot be built on a machine without a GPU.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ext.common.devices import settings_here
from grpo_ext.objective.presets import PRESETS
from grpo_ext.recipe.episode_options import environments_of_tasks
from grpo_ext.recipe.fields import hints_of
from grpo_ext.recipe.foreign import unknown_key
from grpo_ext.recipe.keys import keys_of
from grpo_ext.recipe.notes import GRPO_NOTES, SFT_NOTES, notes_of
from grpo_ext.recipe.options import RunOptions
from grpo_ext.recipe.problems import Problem, RecipeError
from grpo_ext.recipe.read import Overrides, Settings, read_settings
from grpo_ext.recipe.rules import (
    GRPO_RULES,
    SFT_RULES,
    Values,
    check_values,
    flat_values,
    processes,
)
from grpo_ext.recipe.several_tasks import TaskOfSeveral, read_tasks
from grpo_ext.recipe.values import convert
from grpo_ext.tasks import Task, get_task_class

if TYPE_CHECKING:
    from trl import ModelConfig

    from grpo_ext.recipe.schema import GRPOExtConfig, RunConfig

PRESET = "preset "  # the places of keys that a preset sets begin with this


@dataclass
class Recipe:
    """A checked recipe: the values that were set, and the dataclasses built from them.

    A dataclass (`training`, `run`, `model`, `task`) is built when it is first accessed.
    """

    # the values that were set: {"training": {"learning_rate": 5e-07, ...}, "run": ...}
    values: dict[str, dict[str, Any]]
    # the dataclass that lists the fields of each part of `values`
    schema: dict[str, type] = field(repr=False)
    # where a key was set, as `tiny.yaml:12`
    places: dict[str, str | None] = field(default_factory=dict, repr=False)

    @cached_property
    def training(self) -> GRPOExtConfig:
        """The trainer's arguments, adapted to this machine by `fit_machine`.

        If entries of `tasks` have environments, these become the argument `environments`.
        """
        self.fit_machine()
        values = self.values["training"]
        of_tasks = environments_of_tasks(self.values["run"].get("tasks")) if self.grpo else {}
        if of_tasks:
            values = {**values, "environments": of_tasks}
        return self.class_of("training")(**values)

    def fit_machine(self) -> None:
        """Adapt the trainer's arguments in `values` to this machine, in place.

        If there is no accelerator and `use_cpu` is unset, `use_cpu` is set to true, and `bf16` to
        false if it is also unset.
        """
        training = self.values["training"]
        training |= settings_here(training.get("use_cpu"), training.get("bf16"))

    @cached_property
    def run(self) -> RunConfig:
        """The arguments for the data, the rewards and the launcher."""
        return self._build("run")

    @cached_property
    def model(self) -> ModelConfig:
        """TRL's model arguments: name, dtype, LoRA, quantization."""
        return self._build("model")

    @cached_property
    def task(self) -> Task:
        """The recipe's task; if the recipe sets `tasks`, a base `Task` without rows or rewards."""
        task = self._build("task")
        task.use_environment(self.get("environment"))
        return task

    @cached_property
    def tasks(self) -> dict[str, TaskOfSeveral]:
        """The entries of the key `tasks` by name; empty in a recipe with one task."""
        return read_tasks(self.values["run"].get("tasks"))[0]

    @property
    def grpo(self) -> bool:
        """Whether the recipe is for GRPO; otherwise it is for supervised training."""
        return "task" in self.schema

    @property
    def output_dir(self) -> Path:
        """The folder of the run.

        If `output_dir` is not set, it is `runs/FOLDER-NAME` for a recipe that was loaded from the
        file `FOLDER/NAME.yaml`, and TRL's default for a recipe without a file.
        """
        return Path(str(self.training.output_dir))

    @property
    def flat(self) -> Values:
        """The values of all parts as one mapping, with field defaults for keys that are not set."""
        return flat_values(self.values, self.schema)

    @property
    def notes(self) -> list[Problem]:
        """Notes about keys without effect and about odd values, in the order of the recipe's keys.

        There is at most one note per key, and none about keys that a preset sets.
        """
        rules = GRPO_NOTES if self.grpo else SFT_NOTES
        values = self.flat
        note_of_key = {note.key: note for note in notes_of(values, rules, processes(values))}
        notes = []
        for key, place in self.places.items():
            from_preset = place is not None and place.startswith(PRESET)
            if key in note_of_key and not from_preset:
                notes.append(note_of_key[key].placed(self.places))
        return notes

    def get(self, key: str) -> Any:
        """Return the value of `key`, or its default if it is not set.

        Raises:
            KeyError: if no field of the recipe is named `key`.
        """
        return self.flat[key]

    def class_of(self, part: str) -> type:
        """Return the dataclass to build from a part of `values`.

        `part` is `"training"`, `"run"`, `"model"` or, in a GRPO recipe, `"task"`.
        """
        if part == "task":
            return self.schema[part]
        from grpo_ext.recipe.schema import GRPO_CLASSES, SFT_CLASSES

        return (GRPO_CLASSES if self.grpo else SFT_CLASSES)[part]

    def _build(self, part: str) -> Any:
        return self.class_of(part)(**self.values[part])


def load_recipe(
    path: str | Path | None, overrides: Overrides = None, num_processes: int | None = None
) -> Recipe:
    """Load and check a training recipe.

    Args:
        path: a YAML file of `key: value` lines, each key a field of `GRPOExtConfig`, `RunConfig`,
            TRL's `ModelConfig` or the task; or the name of a packaged recipe, such as
            `countdown/tiny`. If `None`, every key has its default unless it is in `overrides`.
        overrides: values that replace those of the file, as a dict or as command-line arguments
            such as `["--learning_rate", "1e-5", "--use_vllm"]`.
        num_processes: the number of training processes, for checking batch sizes. If `None`, it is
            `WORLD_SIZE`, or else `num_processes` in the recipe's accelerate config, or else 1.

    Raises:
        RecipeError: if anything is wrong. The error lists all problems (unknown keys, wrong types,
            values out of range, combinations that do not work), each with its place and a remedy.
        FileNotFoundError: if there is no such file or recipe, or it is a folder.
        OSError: if the file cannot be opened.
    """
    settings = read_settings(path, overrides)
    preset, _ = settings.get("preset", (None, None))
    if isinstance(preset, str) and preset in PRESETS:  # the checks report an unknown preset
        preset_settings: Settings = {}
        for key, (value, source) in PRESETS[preset].items():
            preset_settings[key] = (value, f"{PRESET}{preset} ({source})")
        settings = preset_settings | settings
    name, place = settings.get("task", (RunOptions.task, None))
    task_class: type[Task] = Task
    problems: list[Problem] = []
    try:
        task_class = Task if "tasks" in settings else get_task_class(name)
    except ValueError as error:
        problems = [Problem(str(error), "task", place)]
    schema = {**keys_of(grpo=True, keys=settings), "task": task_class}
    return _checked(path, settings, schema, problems, num_processes)


def load_sft_recipe(
    path: str | Path | None, overrides: Overrides = None, num_processes: int | None = None
) -> Recipe:
    """Load and check a recipe for supervised training.

    The keys are the fields of `SFTConfig`, `ModelConfig` and `LaunchConfig`; there is no task and
    no preset.

    Args:
        path: a YAML file of `key: value` lines, or the name of a packaged recipe, such as
            `countdown/tiny-sft`. If `None`, every key has its default unless it is in `overrides`.
        overrides: values that replace those of the file, as a dict or as command-line arguments.
        num_processes: the number of training processes; if `None`, it is found as in `load_recipe`.

    Raises:
        RecipeError: if anything is wrong. The error lists all problems, each with its place and a
            remedy.
        FileNotFoundError: if there is no such file or recipe, or it is a folder.
        OSError: if the file cannot be opened.
    """
    settings = read_settings(path, overrides)
    schema = keys_of(grpo=False, keys=settings)
    return _checked(path, settings, schema, [], num_processes)


def _checked(
    path: str | Path | None,
    settings: Settings,
    schema: dict[str, type],
    problems: list[Problem],
    ranks: int | None,
) -> Recipe:
    """Check settings and return their recipe; raise `RecipeError` if there are problems.

    The error contains the recipe if only combinations of values are at fault.

    Args:
        path: the recipe's file or name, from which the default `output_dir` is formed; `None` if
            there is no file.
        settings: the value and the place of each key.
        schema: the dataclass that lists the fields of each part of the recipe.
        problems: the problems found so far; all others are appended in place.
        ranks: the number of training processes; if `None`, it is found as in `load_recipe`.
    """
    fields = {
        key: (part, hint)
        for part, cls in reversed(schema.items())
        for key, hint in hints_of(cls).items()
    }
    grpo = "task" in schema
    rules = GRPO_RULES if grpo else SFT_RULES
    other_kind = keys_of(not grpo)
    other_fields = set()
    for part in ("training", "run"):
        other_fields |= {f.name for f in dataclasses.fields(other_kind[part])}
    values: dict[str, dict[str, Any]] = {part: {} for part in schema}
    for key, (value, place) in settings.items():
        try:
            if key not in fields:
                several = "tasks" in settings
                raise ValueError(unknown_key(key, fields, other_fields, grpo, several))
            part, hint = fields[key]
            if value == "" and part != "task":  # a task's strings may be empty
                raise ValueError(f"{key} is empty. Set a value, or remove the key.")
            values[part][key] = convert(key, value, hint)
        except ValueError as error:
            problems.append(Problem(str(error), key, place))
    places = {key: place for key, (_, place) in settings.items()}
    tasks_problems = read_tasks(values["run"].get("tasks"))[1]
    problems += [problem.placed(places) for problem in tasks_problems]
    unsound = {problem.key for problem in problems if problem.key}
    if path is not None:
        values["training"].setdefault(
            "output_dir", f"runs/{Path(path).resolve().parent.name}-{Path(path).stem}"
        )
    problems += check_values(flat_values(values, schema, unsound), rules, places, ranks)
    recipe = Recipe(values, schema, places)
    try:
        _ = grpo and not unsound and recipe.task
    except ValueError as error:  # tasks check their own fields
        problems.append(Problem(str(error), place=None if path is None else str(path)))
        unsound.add("task")
    if problems:
        raise RecipeError(problems, None if unsound else recipe)
    return recipe
