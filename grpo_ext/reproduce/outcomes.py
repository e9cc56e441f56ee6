"""Measure each claim on its runs, and reach a verdict."""

from dataclasses import dataclass, field
from pathlib import Path

from grpo_ext.common.estimates import Estimate, mean_over_runs
from grpo_ext.observe.read_run import RunData, read_run
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.reproduce.claims import SCALES, Claim, Needs, Range, Scale, Verdict
from grpo_ext.reproduce.execute import place_of_message
from grpo_ext.reproduce.measures import MEASURES, Figure
from grpo_ext.reproduce.runs import Job, Matrix


@dataclass
class Outcome:
    """A claim with its measured figure, if there is one, and its verdict."""

    experiment: str
    claim: Claim
    verdict: Verdict
    why: str = ""  # the reason for a verdict that the figure does not explain
    failed: bool = False  # whether a run ended with an error
    estimate: Estimate | None = None
    by_seed: dict[int, Figure] = field(default_factory=dict)
    runs: dict[str, list[RunData]] = field(default_factory=dict)  # by name, one for each seed

    @property
    def details(self) -> str:
        """The details from the measure, each after its seed if there are several seeds."""
        if len(self.by_seed) == 1:
            [figure] = self.by_seed.values()
            return figure.details
        parts = []
        for seed, figure in self.by_seed.items():
            if figure.details:
                parts.append(f"seed {seed}: {figure.details}")
        return "; ".join(parts)


class Logs:
    """Reads the logs of runs, and keeps them, so that each run is read only once."""

    def __init__(self) -> None:
        self._by_folder: dict[Path, RunData] = {}

    def of(self, job: Job) -> RunData:
        if job.folder not in self._by_folder:
            self._by_folder[job.folder] = read_run(job.folder, job.name)
        return self._by_folder[job.folder]


def obstacle(matrix: Matrix, claim: Claim) -> str:
    """Return why a claim cannot be measured at all; `""` if it can.

    The claim's runs need not exist yet.

    Raises:
        RecipeError: if `matrix.config` is not a valid recipe.
        OSError: if `matrix.config` cannot be read.
    """
    if not is_met(matrix, claim.needs):
        return claim.why
    if matrix.config is None:
        return ""
    for name in claim.runs:
        if matrix.experiment.runs[name].start != matrix.experiment.usual_start:
            return f"--config gives only one model, but the claim's run {name} starts from another."
    for name in claim.runs:
        path, overrides = matrix.run(name, 0).arguments
        try:
            load_recipe(path, overrides)
        except RecipeError as error:
            return f"the run {name} cannot be built from {matrix.config}: {error}"
    return ""


def is_met(matrix: Matrix, needs: Needs) -> bool:
    """Return whether the package has the reward and the recipe key that a claim needs."""
    from grpo_ext.rewards.registry import names

    if needs.reward is not None and needs.reward not in names():
        return False
    return needs.key is None or matrix.base.flat.has(needs.key)


def out_of_scale(claim: Claim, scale: Scale) -> bool:
    return SCALES.index(claim.scale) > SCALES.index(scale)


def outcome_of(
    matrix: Matrix,
    claim: Claim,
    scale: Scale,
    failed: list[Job],
    logs: Logs,
) -> Outcome:
    """Measure a claim on its finished runs and return the outcome.

    Args:
        matrix: the jobs of the claim's experiment.
        claim: the claim to measure.
        scale: the scale of the models; a claim that needs a larger scale gets the verdict "cannot
            be seen".
        failed: the jobs that failed. If one of them is a run of the claim, the outcome has `failed`
            set, and says where to find the error message.
        logs: reads the logs of the runs.
    """
    outcome = Outcome(matrix.name, claim, "cannot be seen")
    outcome.why = obstacle(matrix, claim)
    if outcome.why:
        return outcome
    jobs: dict[str, list[Job]] = {}
    missing: list[Job] = []
    for name in claim.runs:
        of_run = [matrix.run(name, seed) for seed in range(matrix.seeds)]
        jobs[name] = of_run
        missing += [job for job in of_run if not job.is_done]
    if missing:
        outcome.why = claim.why if out_of_scale(claim, scale) else "its runs have not finished."
        failed_folders = {job.folder for job in failed}
        broken = [job for job in missing if job.folder in failed_folders]
        if broken:
            outcome.failed = True
            outcome.why = f"{broken[0].name} failed; {place_of_message(broken[0])}."
        return outcome
    for name, of_run in jobs.items():
        outcome.runs[name] = [logs.of(job) for job in of_run]
    for seed in range(matrix.seeds if claim.runs else 1):
        runs = [by_seed[seed] for by_seed in outcome.runs.values()]
        figure = MEASURES[claim.measure](runs, **claim.arguments)
        if figure is not None:
            outcome.by_seed[seed] = figure
    if not outcome.by_seed:
        outcome.why = f"this figure cannot be computed from the logs of its runs: {claim.figure}."
        return outcome
    outcome.estimate = mean_over_runs([figure.estimate for figure in outcome.by_seed.values()])
    if out_of_scale(claim, scale):
        outcome.why = claim.why
        return outcome
    outcome.verdict = claim.expected.verdict(outcome.estimate)
    if outcome.verdict == "cannot be seen":
        outcome.why = undecided(claim.expected, outcome.estimate)
    return outcome


def undecided(expected: Range, estimate: Estimate) -> str:
    """Return why the verdict for an estimate is "cannot be seen".

    This is the case if the estimate has no interval, or if its interval is only partly in the
    expected range. The returned text names the command-line option to change.
    """
    if estimate.low is None:
        return (
            "the figure of a single seed has no interval to compare with the expected range "
            f"({expected}). Raise --seeds."
        )
    return (
        f"the interval {interval_of(estimate)} is only partly in the expected range ({expected}). "
        "Raise --seeds to narrow the interval."
    )


def interval_of(estimate: Estimate) -> str:
    """Format an interval as `[low, high]`; return `""` if there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{estimate.low:.3g}, {estimate.high:.3g}]"
