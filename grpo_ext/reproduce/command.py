"""All claims of a call: plan, run, measure, and show."""

from pathlib import Path

from rich import print

from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.reproduce.claims import Experiment, Scale, load_experiment
from grpo_ext.reproduce.execute import execute, predicted_minutes
from grpo_ext.reproduce.outcomes import Logs, Outcome, obstacle, out_of_scale, outcome_of
from grpo_ext.reproduce.page import FIGURES, print_table, write_page
from grpo_ext.reproduce.runs import Job, Matrix
from grpo_ext.run.output_dir import hold


def selected(names: list[str], claims: list[str]) -> dict[str, Experiment]:
    """Return the experiments with these claims, or all; `ValueError` for an unknown claim."""
    experiments = {name: load_experiment(name) for name in names}
    if not claims:
        return experiments
    known = [claim.name for experiment in experiments.values() for claim in experiment.claims]
    for name in claims:
        if name not in known:
            hint = did_you_mean(name, known) or " `--list` shows all claims."
            raise ValueError(f"--claim: there is no claim {name!r}.{hint}")
    chosen = {}
    for name, experiment in experiments.items():
        wanted = [claim for claim in experiment.claims if claim.name in claims]
        if wanted:
            chosen[name] = experiment.model_copy(update={"claims": wanted})
    return chosen


def print_claims(experiments: dict[str, Experiment]) -> None:
    """Print the names of the claims with what they say."""
    from grpo_ext.evaluation.table import print_grid

    for name, experiment in experiments.items():
        rows = [[claim.name, claim.claim, claim.scale] for claim in experiment.claims]
        print_grid(name, ["claim", "", "scale"], rows, left=3)


def reproduce(
    experiments: dict[str, Experiment],
    folder: Path,
    seeds: int,
    scale: Scale,
    processes: int,
    config: str | None = None,
    overrides: list[str] | None = None,
    max_steps: int | None = None,
    only_plan: bool = False,
) -> list[Outcome]:
    """Run what the claims need, print and write the outcomes, and return them.

    With `only_plan` nothing runs, and there are no outcomes.

    Raises:
        ValueError: if another process works in `folder`, or a folder of a run there has other
            files.
    """
    matrices = [
        Matrix(name, experiment, folder, seeds, config, overrides or [], max_steps)
        for name, experiment in experiments.items()
    ]
    jobs: list[Job] = []
    for matrix in matrices:
        claims = matrix.experiment.claims
        can_be_seen = [claim for claim in claims if not out_of_scale(claim, scale)]
        jobs += matrix.jobs([claim for claim in can_be_seen if not obstacle(matrix, claim)])
    print_plan(jobs, processes)
    if only_plan:
        return []
    lock = hold(folder)
    if lock is None:
        raise ValueError(f"--folder: another process works in {folder}.")
    with lock:
        failed = execute(jobs, processes, by_launcher=config is not None)
        logs = Logs()
        outcomes = [
            outcome_of(matrix, claim, scale, failed, logs)
            for matrix in matrices
            for claim in matrix.experiment.claims
        ]
        print_table(outcomes)
        model = f"recipe {config}" if config else "tiny models"
        page = write_page(outcomes, folder, f"{model}, scale {scale}, seeds: {seeds}")
    print(f"page: {page}; figures: {folder / FIGURES}; runs: grpo-ext report {folder}/EXPERIMENT")
    return outcomes


def print_plan(jobs: list[Job], processes: int) -> None:
    """Print what will run and how long it takes."""
    left = [job for job in jobs if not job.is_done]
    starts = sum(job.module == "start" for job in left)
    minutes = predicted_minutes(jobs, processes)
    time = (
        ""
        if minutes is None
        else f", about {max(1, round(minutes))} minutes on {processes} idle cores"
    )
    done = f"; {len(jobs) - len(left)} are done" if len(left) < len(jobs) else ""
    print(f"{len(left)} jobs: {starts} warm starts, {len(left) - starts} runs{time}{done}")
