"""A run as its folder describes it: metrics, completions, recipe, versions, alarms. The run may
still go on.

The folder is untrusted: what cannot be read is left out and named in `faults`.
"""

import fcntl
import json
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from grpo_ext.common.foreign_files import (
    check_yaml,
    entries,
    leads_out,
    open_plain,
    read_text,
)
from grpo_ext.common.hash_sample import in_share
from grpo_ext.common.untrusted import one_line
from grpo_ext.observe.jsonl import parts, read, row_of
from grpo_ext.observe.run_log import LEARNT_NOTHING, METRICS, RUN, SAMPLE, SAMPLES

Row = dict[str, Any]
Values = list[float | None]
MOST_BYTES = 2**18  # of a recipe or `run.json`; YAML is slow, and a live page reads them often
# Tables of a run have a row for each line of a log and a column for each name, so a small log with
# a new name in every line would fill the memory.
MOST_REWARDS = 50
MOST_METRICS = 5000
QUIET = 300.0  # seconds without a new line after which a run without a lock counts as stopped


@dataclass
class Series:
    """One curve: values by step."""

    label: str
    steps: list[int]
    values: Values
    errors: Values | None = None  # standard errors of an evaluation, drawn as bars
    sampling_errors: Values | None = None  # standard errors of training, each by other prompts
    problems: Values | None = None  # how many independent ones each value is a mean over
    spread: Values | None = None  # mean standard deviation within a group, drawn as a band
    bounds: tuple[float, float] | None = (
        None  # where the band ends: the lowest and highest value of a completion
    )
    smoothed: bool = True  # false where each value is exact, as in a schedule


def reward_curves(rows: Iterable[Row]) -> dict[str, Series]:
    """Return the curve of each reward (`reward`: the weighted sum) from lines of `samples.jsonl`,
    without evaluations.

    A value is the mean over the groups of a step: of their means, and as `spread` of their
    (population) standard deviations. `sampling_errors` are the standard errors of the values.
    """
    train = [
        (row["step"], row["group"], {**row["rewards"], "reward": row["reward"]})
        for row in rows
        if row["mode"] == "train"
    ]
    if not train:
        return {}
    index = pd.MultiIndex.from_tuples([(step, group) for step, group, _ in train])
    table = pd.DataFrame([scores for *_, scores in train], index=index, dtype=float)
    groups = table.groupby(level=[0, 1])
    means_of_groups = groups.mean()
    means = means_of_groups.groupby(level=0).mean()
    errors = means_of_groups.groupby(level=0).sem()
    spreads = groups.std(ddof=0).groupby(level=0).mean()
    curves = {}
    for name in table:
        mean, error, spread = (
            [value if math.isfinite(value) else None for value in part[name]]
            for part in (means, errors, spreads)
        )
        bounds = (table[name].min(), table[name].max()) if table[name].notna().any() else None
        curves[name] = Series(
            name,
            means.index.tolist(),
            mean,
            sampling_errors=error,
            spread=spread,
            bounds=bounds,
        )
    return curves


@dataclass
class RunData:
    """What is known of a run."""

    name: str  # short, and different from the other runs' names
    folder: Path  # where the logs lie
    metrics: list[Row]  # of `metrics.jsonl`
    samples: list[Row] = field(default_factory=list)  # of all prompts or of a share, oldest first
    total_samples: int = 0  # number of completions in the logs
    curves: dict[str, Series] = field(default_factory=dict)  # of each reward, from all completions
    recipe: Row = field(default_factory=dict)  # `recipe.yaml`; empty where it is missing
    about: Row = field(default_factory=dict)  # `run.json`; empty where it is missing
    faults: list[str] = field(default_factory=list)  # sentences on what could not be read

    @property
    def rewards(self) -> list[Row]:
        """Name, weight and options of each reward."""
        found = [
            row for row in mappings(self.about.get("rewards")) if isinstance(row.get("name"), str)
        ]
        return found[:MOST_REWARDS] or [
            {"name": name} for name in (self.samples[0]["rewards"] if self.samples else ())
        ]


def read_run(path: str | Path, name: str | None = None, max_samples: int = 50_000) -> RunData:
    """Read the run in `path`, or in its folder `grpo`, where the demos have it.

    Of more than about `max_samples` completions those of a share of the prompts are kept, each
    prompt in all its steps. `FileNotFoundError` if there is no run.
    """
    folder = find_folder(Path(path).expanduser())
    run = without_logs(folder, name)
    run.metrics = read_metrics(run)
    run.curves = reward_curves(kept_samples(run, max_samples))
    return run


def read_metrics(run: RunData) -> list[Row]:
    """Return the lines of `metrics.jsonl`."""
    names = FirstNames("metrics", MOST_METRICS)
    rows = [names.keep(row) for row in read(run.folder / METRICS, faults=run.faults)]
    run.faults += names.faults()
    return rows


@dataclass
class FirstNames:
    """The names in the lines of a log, of which only the first ones are shown."""

    kind: str
    most: int
    names: set[str] = field(default_factory=lambda: {"step"})
    has_more: bool = False

    def keep(self, row: Row) -> Row:
        """Return a mapping without names beyond the first ones."""
        if row.keys() <= self.names:
            return row
        kept = {}
        for name, entry in row.items():
            if name in self.names or len(self.names) < self.most:
                self.names.add(name)
                kept[name] = entry
            else:
                self.has_more = True
        return kept

    def faults(self) -> list[str]:
        """Return a sentence if names were left out."""
        if not self.has_more:
            return []
        return [f"{self.kind} beyond the first {self.most:,} are left out."]


def without_logs(folder: Path, name: str | None = None) -> RunData:
    """Return what is known of the run in a folder without reading its logs."""
    run = RunData(name or short_name(folder), folder, [])
    run.recipe, run.about = (
        read_mapping(folder / file, run.faults) for file in ("recipe.yaml", RUN)
    )
    if len(mappings(run.about.get("rewards"))) > MOST_REWARDS:
        run.faults.append(f"{folder / RUN}: rewards beyond the first {MOST_REWARDS} are left out.")
    return run


def kept_samples(run: RunData, most: int) -> Iterator[Row]:
    """Yield all completions of a run; keep those of a share of the prompts, about `most`, in
    `run.samples`.
    """
    share = 1.0
    names = FirstNames("rewards", MOST_REWARDS)
    for row in read(run.folder / SAMPLES, SAMPLE, run.faults):
        run.total_samples += 1
        row["rewards"] = names.keep(row["rewards"])
        if in_share(row["prompt_id"], share):
            run.samples.append(row)
        while len(run.samples) > most:
            share *= 0.9
            run.samples = [row for row in run.samples if in_share(row["prompt_id"], share)]
        yield row
    run.faults += names.faults()


def runs_in(path: Path) -> list[Path]:
    """Return the run in a folder, or if it holds none itself, those in its folders by name.

    Links out of the folder are left out, since the reader did not name where they lead.
    """
    run = run_folder(path)
    if run is not None:
        return [run]
    inside = entries(path) if path.is_dir() else []
    runs = (run_folder(folder) for folder in inside if not leads_out(folder, path))
    return [run for run in runs if run is not None]


def run_folder(path: Path) -> Path | None:
    """Return the folder of a run's logs: `path`, or its folder `grpo`; `None` if there is none or
    it cannot be read.
    """
    for folder in (path, path / "grpo"):
        try:
            if not leads_out(folder, path) and parts(folder / METRICS):
                return folder
        except OSError:  # no permission, or too many entries
            continue
    return None


def find_folder(path: Path) -> Path:
    if found := run_folder(path):
        return found
    wrong = f"there is no {METRICS} in it, which `grpo-ext train` writes into its output_dir."
    raise FileNotFoundError(f"{path} holds no run: {wrong}")


def short_name(folder: Path) -> str:
    return (
        folder.parent.name
        if folder.name == "grpo" and folder.parent.name
        else folder.resolve().name
    )


def named(folders: list[Path]) -> dict[Path, str]:
    """Return the folders of runs with their names, and a number behind a name that several have."""
    names = [short_name(folder) for folder in folders]
    seen = [names[:i].count(name) + 1 for i, name in enumerate(names)]
    some = zip(folders, names, seen, strict=True)
    return {
        folder: f"{name} ({number})" if names.count(name) > 1 else name
        for folder, name, number in some
    }


def is_running(folder: Path) -> bool:
    """Whether the process of the run in a folder lives; without a lock, as from Python, whether its
    log still grows.
    """
    try:
        with open_plain(folder / ".lock", folder) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        with suppress(OSError):  # a log that was moved this moment
            return any(
                time.time() - part.stat().st_mtime < QUIET for part in parts(folder / METRICS)
            )
    return False


def learnt_nothing(folder: Path) -> bool:
    """Whether the run in a folder reached its end and said that it learnt nothing."""
    return any(row.get("alarm") == LEARNT_NOTHING for row in read(folder / METRICS))


def mappings(value: Any) -> list[Row]:
    """Return the mappings in a list; none if `value` is not a list."""
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def read_mapping(path: Path, faults: list[str]) -> Row:
    """Read a YAML or JSON file as a mapping; empty if there is no file or it cannot be read, which
    goes to `faults`.
    """
    if not path.exists():
        return {}
    try:
        text = read_text(path, MOST_BYTES, path.parent)
        if path.suffix == ".json":
            return row_of(text)
        check_yaml(text)
        return row_of(json.dumps(yaml.safe_load(text), default=str))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        faults.append(one_line(f"{path} cannot be read ({str(error).splitlines()[0]})."))
        return {}
