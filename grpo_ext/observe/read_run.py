"""A run as read from its folder: metrics, completions, recipe, versions, alarms.

The run may still go on.

The folder is untrusted: what cannot be read is left out and named in `faults`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpo_ext.common.foreign_files import read_bytes
from grpo_ext.common.hash_sample import in_share
from grpo_ext.common.untrusted import one_line
from grpo_ext.common.yaml_text import YamlFault, load_yaml
from grpo_ext.observe.json_row import row_of
from grpo_ext.observe.jsonl import read
from grpo_ext.observe.run_folders import find_folder, short_name
from grpo_ext.observe.run_log import LEARNT_NOTHING, METRICS, RUN, SAMPLE, SAMPLES

Row = dict[str, Any]
Values = list[float | None]
MOST_BYTES = 2**18  # of a recipe or `run.json`; YAML is slow, and a live page reads them often
# Tables of a run have a row for each line of a log and a column for each name, so a small log with
# a new name in every line would fill the memory.
MOST_REWARDS = 50
MOST_METRICS = 5000


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
    # where the band ends: the lowest and highest value of a completion
    bounds: tuple[float, float] | None = None
    smoothed: bool = True  # false where each value is exact, as in a schedule


def reward_curves(rows: Iterable[Row]) -> dict[str, Series]:
    """Return the curve of each reward (`reward`: the weighted sum) from training `samples.jsonl`.

    A value is the mean over the groups of a step: of their means, and as `spread` of their
    (population) standard deviations. `sampling_errors` are the standard errors of the values.
    """
    index = []
    scores = []
    for row in rows:
        if row["mode"] == "train":
            index.append((row["step"], row["group"]))
            scores.append({**row["rewards"], "reward": row["reward"]})
    if not scores:
        return {}
    table = pd.DataFrame(scores, index=pd.MultiIndex.from_tuples(index), dtype=float)
    groups = table.groupby(level=[0, 1])
    group_means = groups.mean()
    means = group_means.groupby(level=0).mean()
    errors = group_means.groupby(level=0).sem()
    spreads = groups.std(ddof=0).groupby(level=0).mean()
    curves = {}
    for name in table:
        bounds = None
        if table[name].notna().any():
            bounds = (table[name].min(), table[name].max())
        curves[name] = Series(
            name,
            means.index.tolist(),
            without_nan(means[name]),
            sampling_errors=without_nan(errors[name]),
            spread=without_nan(spreads[name]),
            bounds=bounds,
        )
    return curves


def without_nan(column: pd.Series) -> Values:
    """Return the values of a column, with `None` for those that are not finite."""
    return column.astype(object).where(np.isfinite(column), None).tolist()


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
        entries = mappings(self.about.get("rewards"))
        rewards = [entry for entry in entries if isinstance(entry.get("name"), str)]
        if not rewards and self.samples:
            rewards = [{"name": name} for name in self.samples[0]["rewards"]]
        return rewards[:MOST_REWARDS]


def read_run(path: str | Path, name: str | None = None, max_samples: int = 50_000) -> RunData:
    """Read the run in `path`, or in its folder `grpo`, where the demos have it.

    Args:
        path: the `output_dir` of the run.
        name: of the run; `None`: that of its folder.
        max_samples: about as many completions are kept: those of a share of the prompts, each
            prompt in all its steps.

    Raises:
        FileNotFoundError: if there is no run.
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
    limit: int
    names: set[str] = field(default_factory=lambda: {"step"})
    has_more: bool = False

    def keep(self, row: Row) -> Row:
        """Return a mapping without names beyond the first ones."""
        if row.keys() <= self.names:
            return row
        shortened = {}
        for name, entry in row.items():
            if name in self.names or len(self.names) < self.limit:
                self.names.add(name)
                shortened[name] = entry
            else:
                self.has_more = True
        return shortened

    def faults(self) -> list[str]:
        """Return a sentence if names were left out."""
        if not self.has_more:
            return []
        return [f"{self.kind} beyond the first {self.limit:,} are left out."]


def without_logs(folder: Path, name: str | None = None) -> RunData:
    """Return what is known of the run in a folder without reading its logs."""
    run = RunData(name or short_name(folder), folder, [])
    run.recipe = read_mapping(folder / "recipe.yaml", run.faults)
    run.about = read_mapping(folder / RUN, run.faults)
    rewards = mappings(run.about.get("rewards"))
    if len(rewards) > MOST_REWARDS:
        run.faults.append(f"{folder / RUN}: rewards beyond the first {MOST_REWARDS} are left out.")
    return run


def kept_samples(run: RunData, most: int) -> Iterator[Row]:
    """Yield all completions of a run, and keep those of about `most` prompts in `run.samples`."""
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


def learnt_nothing(folder: Path) -> bool:
    """Whether the run in a folder reached its end and said that it learnt nothing."""
    return any(row.get("alarm") == LEARNT_NOTHING for row in read(folder / METRICS))


def mappings(entries: object) -> list[Row]:
    """Return the mappings in a list; none if `entries` is not a list."""
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]


def read_mapping(path: Path, faults: list[str]) -> Row:
    """Read a YAML or JSON mapping; empty if absent or unreadable, which is added to `faults`."""
    if not path.exists():
        return {}
    try:
        content = read_bytes(path, MOST_BYTES, path.parent)
        if path.suffix == ".json":
            return row_of(content.decode())
        return row_of(json.dumps(load_yaml(content), default=str))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = reason_of(error)
    faults.append(one_line(f"{path} cannot be read ({reason})."))
    return {}


def reason_of(error: Exception) -> str:
    """Return why a file cannot be read, without the excerpts and the path that an error adds."""
    if isinstance(error, YamlFault):
        return f"line {error.line}: {error.reason}"
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror
    return str(error) or type(error).__name__
