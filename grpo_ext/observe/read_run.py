"""Read a run from its folder: metrics, completions, recipe, versions and alarms.

The run may still be in progress. The folder is untrusted: whatever cannot be read is left out and
reported in `RunData.faults`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpo_ext.common.foreign_files import read_bytes
from grpo_ext.common.hashes import in_share
from grpo_ext.common.untrusted import one_line
from grpo_ext.common.yaml_text import YamlFault, load_yaml
from grpo_ext.observe.jsonl import read, row_of
from grpo_ext.observe.log_files import LEARNED_NOTHING, METRICS, RUN, SAMPLE, SAMPLES
from grpo_ext.observe.run_folders import find_folder, short_name

Row = dict[str, Any]
Values = list[float | None]
# Maximum size of a recipe or `run.json`: parsing YAML is slow, and a live page reads them often.
MOST_BYTES = 2**18
# Tables of a run have a row for each line of a log and a column for each name, so a small log with
# a new name in every line would fill the memory.
MOST_REWARDS = 50
MOST_METRICS = 5000


@dataclass
class Series:
    """A curve: one value for each of its steps."""

    label: str
    steps: list[int]
    values: Values
    errors: Values | None = None  # standard errors of evaluations, drawn as bars
    # standard errors of training values, which are means over different prompts at each step
    sampling_errors: Values | None = None
    problems: Values | None = None  # number of problems that each value is averaged over
    spread: Values | None = None  # mean standard deviation within a group, drawn as a band
    # limits of the band: the lowest and highest value of a completion
    bounds: tuple[float, float] | None = None
    smoothed: bool = True  # `False` if the values are exact, as in a schedule


def reward_curves(rows: Iterable[Row]) -> dict[str, Series]:
    """Return a curve over training steps for each reward and for their weighted sum `reward`.

    Each value is the mean of a step's group means. `spread` is the mean of the groups'
    (population) standard deviations, and `sampling_errors` are the standard errors of the values.

    Args:
        rows: the lines of `samples.jsonl`; lines of evaluations are skipped.

    Returns:
        The curves by reward name; `{}` if there are no training rows.
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
    """Return the values of a column, with `None` for values that are not finite."""
    return column.astype(object).where(np.isfinite(column), None).tolist()


@dataclass
class RunData:
    """The data of a run, as far as it could be read."""

    name: str  # a short name, unique among the runs
    folder: Path  # the folder of the logs
    metrics: list[Row]  # the lines of `metrics.jsonl`
    # all completions, or all those of a share of the prompts; oldest first
    samples: list[Row] = field(default_factory=list)
    total_samples: int = 0  # number of completions in the logs
    # the curve of each reward, from all completions
    curves: dict[str, Series] = field(default_factory=dict)
    recipe: Row = field(default_factory=dict)  # `recipe.yaml`; empty if it is missing
    about: Row = field(default_factory=dict)  # `run.json`; empty if it is missing
    faults: list[str] = field(default_factory=list)  # sentences about what could not be read

    @property
    def rewards(self) -> list[Row]:
        """One mapping per reward, with its `name` and whatever else `run.json` contains about it.

        If `run.json` lists no rewards, the names come from the first completion. There are at most
        `MOST_REWARDS` mappings.
        """
        entries = mappings(self.about.get("rewards"))
        rewards = [entry for entry in entries if isinstance(entry.get("name"), str)]
        if not rewards and self.samples:
            rewards = [{"name": name} for name in self.samples[0]["rewards"]]
        return rewards[:MOST_REWARDS]

    @property
    def outcomes(self) -> list[str]:
        """The names of the outcome rewards, or of the first reward if `run.json` lists none."""
        outcomes = self.about.get("outcomes")
        if not isinstance(outcomes, list):
            outcomes = [self.about.get("outcome")]
        names = [name for name in outcomes if isinstance(name, str)]
        return names or [reward["name"] for reward in self.rewards[:1]]


def read_run(path: str | Path, name: str | None = None, max_samples: int = 50_000) -> RunData:
    """Read the run in `path`, or in its subfolder `grpo`, which the demos use.

    Args:
        path: the `output_dir` of the run.
        name: the name of the run; `None` uses the name of its folder (see `short_name`).
        max_samples: the maximum number of completions to keep. If there are more, a hash selects a
            share of the prompts, and all completions of these prompts are kept.

    Raises:
        FileNotFoundError: if there is no run in `path`.
    """
    folder = find_folder(Path(path).expanduser())
    run = without_logs(folder, name)
    run.metrics = read_metrics(run)
    samples = kept_samples(run, max_samples)
    run.curves = reward_curves(samples)
    return run


def read_metrics(run: RunData) -> list[Row]:
    """Return the lines of `metrics.jsonl`, keeping only the first `MOST_METRICS` metric names.

    If names are left out, or lines cannot be read, sentences that say so are added to `run.faults`.
    """
    names = FirstNames("metrics", MOST_METRICS)
    rows = []
    for row in read(run.folder / METRICS, faults=run.faults):
        rows.append(names.keep(row))
    run.faults += names.faults()
    return rows


@dataclass
class FirstNames:
    """Removes all but the first `limit` distinct names from the lines of a log.

    The name `step` is always kept, and does not count toward the limit.
    """

    kind: str  # what the names stand for, such as "metrics"
    limit: int
    names: set[str] = field(default_factory=lambda: {"step"})
    has_more: bool = False

    def keep(self, row: Row) -> Row:
        """Return the row with only the entries whose names are among the first `limit` ones.

        Names are counted over all rows that were passed so far. If an entry is left out, `has_more`
        is set to `True`.
        """
        if row.keys() <= self.names:
            return row
        shortened = {}
        for name, entry in row.items():
            # `<=`, because `names` also contains `step`
            if name in self.names or len(self.names) <= self.limit:
                self.names.add(name)
                shortened[name] = entry
            else:
                self.has_more = True
        return shortened

    def faults(self) -> list[str]:
        """Return a list with one sentence if names were left out, otherwise an empty list."""
        if not self.has_more:
            return []
        return [f"{self.kind} beyond the first {self.limit:,} are left out."]


def without_logs(folder: Path, name: str | None = None) -> RunData:
    """Read `recipe.yaml` and `run.json` of the run in a folder, but not its logs.

    `name` is the name of the run; `None` uses the name of its folder.
    """
    run = RunData(name or short_name(folder), folder, [])
    run.recipe = read_mapping(folder / "recipe.yaml", run.faults)
    run.about = read_mapping(folder / RUN, run.faults)
    rewards = mappings(run.about.get("rewards"))
    if len(rewards) > MOST_REWARDS:
        run.faults.append(f"{folder / RUN}: rewards beyond the first {MOST_REWARDS} are left out.")
    return run


def kept_samples(run: RunData, most: int) -> Iterator[Row]:
    """Yield all completions of a run, and keep at most `most` of them in `run.samples`.

    If there are more, a hash selects a share of the prompts, and all completions of these prompts
    are kept. The completions are also counted in `run.total_samples`, and sentences about lines and
    rewards that are left out are added to `run.faults`. All of this happens as the completions are
    yielded, so `run` is incomplete until the caller has iterated to the end.
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


def learned_nothing(folder: Path) -> bool:
    """Return whether `metrics.jsonl` in a folder says that the run finished but learned nothing."""
    return any(row.get("alarm") == LEARNED_NOTHING for row in read(folder / METRICS))


def mappings(entries: object) -> list[Row]:
    """Return the mappings in a list; `[]` if `entries` is not a list."""
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]


def read_mapping(path: Path, faults: list[str]) -> Row:
    """Return the mapping in a YAML or JSON file; `{}` if the file is missing or invalid.

    A file is invalid if it cannot be read, is too large, or does not contain a mapping. If so, a
    sentence is added to `faults`.
    """
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
    """Return why a file cannot be read, leaving out its path and content where possible."""
    if isinstance(error, YamlFault):
        return f"line {error.line}: {error.reason}"
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror
    return str(error) or type(error).__name__
