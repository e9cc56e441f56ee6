"""Test the selected claims: plan the runs, run them, measure, and show the results."""

from pathlib import Path

from rich import print

from grpo_ext.common.run_time import counted
from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.reproduce.claims import Experiment, Scale, load_experiment
from grpo_ext.reproduce.execute import execute, predicted_minutes
from grpo_ext.reproduce.outcomes import Logs, Outcome, obstacle, out_of_scale, outcome_of
from grpo_ext.reproduce.page import FIGURES, print_table, write_page
from grpo_ext.reproduce.runs import Job, Matrix
from grpo_ext.run.output_dir import hold


def selected(names: list[str], claims: list[str]) -> dict[str, Experiment]:
    """Load the named experiments, with only the selected claims.

    Args:
        names: the names of the experiments.
        claims: the names of the claims to keep; experiments without any of these claims are left
            out. An empty list keeps everything.

    Raises:
        ValueError: if a name in `claims` is not a claim of any of the experiments.
    """
    experiments = {name: load_experiment(name) for name in names}
    if not claims:
        return experiments
    claim_names: list[str] = []
    selection = {}
    for name, experiment in experiments.items():
        claim_names += [claim.name for claim in experiment.claims]
        of_experiment = [claim for claim in experiment.claims if claim.name in claims]
        if of_experiment:
            selection[name] = experiment.model_copy(update={"claims": of_experiment})
    for claim_name in claims:
        if claim_name not in claim_names:
            hint = did_you_mean(claim_name, claim_names) or " `--list` shows all claims."
            raise ValueError(
                f"--claim: the selected experiments have no claim {claim_name!r}.{hint}"
            )
    return selection


def print_claims(experiments: dict[str, Experiment]) -> None:
    """Print the name, text and scale of each claim."""
    from grpo_ext.evaluation.table import print_grid

    for name, experiment in experiments.items():
        rows = []
        for claim in experiment.claims:
            rows.append([claim.name, claim.claim, claim.scale])
        print_grid(name, ["name", "claim", "scale"], rows, left=3)


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
    """Run the jobs that the claims need, print a table, write the page, and return the outcomes.

    Args:
        experiments: the experiments with their claims, by name.
        folder: the folder that the runs and the page are written to.
        seeds: the number of seeds with which each run is repeated.
        scale: the scale of the models; a claim that needs a larger scale gets the verdict "cannot
            be seen".
        processes: the number of tiny runs to execute in parallel.
        config: a recipe with another model, from which all runs start; if `None`, they start from
            tiny models.
        overrides: command-line arguments that override keys of `config`.
        max_steps: the number of steps after which every run ends; if `None`, each run's own number
            applies.
        only_plan: whether to only print what would run, and return an empty list.

    Raises:
        ValueError: if `config` is not a valid recipe (`RecipeError`), another process uses
            `folder`, or the folder of a run has unrelated files.
        OSError: if `config` cannot be read, or `folder` cannot be created, locked or written.
        SystemExit: if SIGTERM stopped this process or, with `config`, a signal stopped a run.
    """
    matrices = []
    jobs: list[Job] = []
    for name, experiment in experiments.items():
        matrix = Matrix(
            name,
            experiment,
            folder,
            seeds,
            config=config,
            overrides=overrides or [],
            max_steps=max_steps,
        )
        matrices.append(matrix)
        measurable = []
        for claim in experiment.claims:
            if not out_of_scale(claim, scale) and not obstacle(matrix, claim):
                measurable.append(claim)
        jobs += matrix.jobs(measurable)
    print_plan(jobs, processes)
    if only_plan:
        return []
    lock = hold(folder)
    if lock is None:
        raise ValueError(
            f"--folder: another process is using {folder}. Wait until that process ends, or pass "
            "another folder."
        )
    with lock:
        failed = execute(jobs, processes, by_launcher=config is not None)
        logs = Logs()
        outcomes = []
        for matrix in matrices:
            for claim in matrix.experiment.claims:
                outcomes.append(outcome_of(matrix, claim, scale, failed, logs))
        print_table(outcomes)
        model = f"recipe {config}" if config else "tiny models"
        page = write_page(outcomes, folder, f"{model}, scale {scale}, seeds: {seeds}")
    print(f"page: {page}; data: {folder / FIGURES}; runs: grpo-ext report {folder}/EXPERIMENT")
    return outcomes


def print_plan(jobs: list[Job], processes: int) -> None:
    """Print how many jobs will run and, if known, how long they will take.

    Args:
        jobs: all jobs, including those that are done.
        processes: the number of jobs that run in parallel.
    """
    unfinished = [job for job in jobs if not job.is_done]
    starts = sum(job.module == "start" for job in unfinished)
    runs = counted(len(unfinished) - starts, "run")
    plan = f"{counted(len(unfinished), 'job')}: {counted(starts, 'warm start')}, {runs}"
    minutes = predicted_minutes(jobs, processes)
    if minutes is not None:
        time = counted(max(1, round(minutes)), "minute")
        plan += f", about {time} on {counted(processes, 'idle core')}"
    if len(unfinished) < len(jobs):
        plan += f"; already done: {len(jobs) - len(unfinished)}"
    print(plan)
