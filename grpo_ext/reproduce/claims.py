"""The claims of each experiment, which are read from `data/NAME.yaml` and validated."""

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_ext.common.estimates import Estimate
from grpo_ext.common.files import data_yaml

Scale = Literal["tiny", "pretrained", "full"]
SCALES: tuple[Scale, ...] = ("tiny", "pretrained", "full")
EXPERIMENTS = ("countdown", "gsm8k", "verse")
Verdict = Literal["agrees", "does not", "cannot be seen"]


class Section(BaseModel):
    """Base class for the parts of a claims file; it rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Range(Section):
    """The range of values that agree with a claim, bounded on at least one side."""

    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _has_a_bound(self) -> "Range":
        if self.at_least is None and self.at_most is None:
            raise ValueError("`expected` has no bound. Set at_least, at_most, or both.")
        return self

    def verdict(self, estimate: Estimate) -> Verdict:
        """Return whether the interval of an estimate agrees with this range.

        The verdict is "agrees" if the interval is inside the range, "does not" if it is outside,
        and "cannot be seen" if it is partly inside, or if the estimate has no interval.
        """
        low = estimate.low
        high = estimate.high
        if low is None or high is None:
            return "cannot be seen"
        at_least = -math.inf if self.at_least is None else self.at_least
        at_most = math.inf if self.at_most is None else self.at_most
        if at_least <= low and high <= at_most:
            return "agrees"
        if high < at_least or low > at_most:
            return "does not"
        return "cannot be seen"

    def __str__(self) -> str:
        if self.at_most is None:
            return f"at least {self.at_least:g}"
        if self.at_least is None:
            return f"at most {self.at_most:g}"
        return f"{self.at_least:g} to {self.at_most:g}"


class Needs(Section):
    """The reward and the recipe key that the package must have for a claim to be tested."""

    reward: str | None = None  # a registered reward
    key: str | None = None  # a key of a recipe


class Map(Section):
    """A heat map of the final values of `metric` in a claim's runs.

    `rows` and `columns` are the recipe keys whose values determine the cell of a run.
    """

    rows: str
    columns: str
    metric: str


class Claim(Section):
    """A published observation, and the measurement that decides whether our runs show it."""

    name: str = Field(pattern="^[a-z0-9-]+$")
    claim: str  # in one sentence
    place: str  # the part of the publication
    published: str  # the published number, or "no figure"
    measure: str  # a name in `grpo_ext.reproduce.measures.MEASURES`
    runs: tuple[str, ...] = ()  # in the order that the measure expects
    arguments: dict[str, Any] = {}  # additional arguments for the measure
    figure: str  # a description of the measured number
    expected: Range
    scale: Scale = "tiny"  # the smallest scale at which `expected` applies
    # why `expected` does not apply at a smaller scale, or without what the claim needs
    why: str = ""
    needs: Needs = Needs()
    curves: tuple[str, ...] = ()  # metrics to draw
    map: Map | None = None

    @model_validator(mode="after")
    def _says_why(self) -> "Claim":
        conditional = self.scale != "tiny" or self.needs != Needs()
        if conditional and not self.why:
            raise ValueError(
                f"{self.name}: a claim with `needs`, or with a `scale` other than tiny, must say "
                "`why`."
            )
        return self


class Start(Section):
    """A model that tiny runs start from: a demo's model, trained first unless `max_steps` is 0."""

    demo: str  # a name in `grpo_ext.demo.demos.DEMOS`
    demonstrations: Literal["demo", "untidy_tags", "line_only"] = "demo"
    count: int  # the number of demonstrations
    task: dict[str, Any] = {}  # recipe keys of the task that differ from the recipe
    max_steps: int  # steps of supervised training; 0 skips the training
    seconds: float  # duration on one idle core


class Run(Section):
    """A training run, described by how it differs from the experiment's recipe."""

    start: str  # the name of the model that a tiny run starts from
    changes: dict[str, Any] = {}  # recipe keys; {times: F} multiplies the recipe's value
    tiny: dict[str, Any] = {}  # additional recipe keys, for tiny runs only
    seconds: float  # duration of the tiny run on one idle core


class Experiment(Section):
    """The claims of an experiment and the runs that test them: the contents of `data/NAME.yaml`."""

    recipe: str  # the recipe of the tiny runs
    usual_start: str  # the start that is replaced by the model of another recipe (`--config`)
    tiny: dict[str, Any] = {}  # recipe keys for all tiny runs
    starts: dict[str, Start]
    runs: dict[str, Run]
    claims: list[Claim]

    @model_validator(mode="after")
    def _refers_to_what_exists(self) -> "Experiment":
        for name, run in self.runs.items():
            if run.start not in self.starts:
                raise ValueError(
                    f"run {name}: `start` is {run.start!r}, but `starts` has only "
                    f"{', '.join(self.starts)}."
                )
        if self.usual_start not in self.starts:
            raise ValueError(
                f"`usual_start` is {self.usual_start!r}, but `starts` has only "
                f"{', '.join(self.starts)}."
            )
        for claim in self.claims:
            for run_name in claim.runs:
                if run_name not in self.runs:
                    raise ValueError(f"claim {claim.name}: there is no run {run_name!r} in `runs`.")
        names = [claim.name for claim in self.claims]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"several claims have the name {name!r}: rename all but one.")
        return self


def load_experiment(name: str) -> Experiment:
    """Load and validate the claims of an experiment.

    Args:
        name: one of `EXPERIMENTS`.

    Raises:
        ValueError: if a key or value in the experiment's file is invalid.
    """
    return Experiment.model_validate(data_yaml("grpo_ext.reproduce", f"{name}.yaml"))
