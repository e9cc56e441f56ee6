"""One tiny claim from its runs to its page; jobs that fail, and jobs that are killed."""

from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path

import pytest

from grpo_ext.observe.jsonl import read
from grpo_ext.reproduce import execute
from grpo_ext.reproduce.claims import load_experiment
from grpo_ext.reproduce.command import reproduce
from grpo_ext.reproduce.measures.base import figure
from grpo_ext.reproduce.outcomes import Outcome
from grpo_ext.reproduce.page import FIGURES, as_figure, write_page
from grpo_ext.reproduce.runs import STATE, Job, Matrix

SMALL = {
    "per_device_train_batch_size": 16,
    "max_completion_length": 24,
    "logging_steps": 1,
    "save_steps": 2,
}


def small(name, claims, start_steps=4):
    """An experiment with these claims only, little supervised training, and small batches."""
    experiment = load_experiment(name)
    chosen = [claim for claim in experiment.claims if claim.name in claims]
    starts = {
        key: start.model_copy(update={"count": 64, "max_steps": start_steps})
        for key, start in experiment.starts.items()
    }
    update = {"claims": chosen, "starts": starts, "tiny": {**experiment.tiny, **SMALL}}
    return experiment.model_copy(update=update)


@pytest.mark.slow
def test_a_claim_is_run_measured_and_shown_once(tmp_path, capsys):
    experiments = {
        "verse": small("verse", ("tones-rise", "short-answers-weigh-more", "meaning-lost"))
    }
    settings = {"folder": tmp_path, "seeds": 1, "scale": "tiny", "processes": 2, "max_steps": 6}
    first, weight, meaning = reproduce(experiments, **settings)
    rows = [row for row in read(tmp_path / "verse/thoughts-seed0/metrics.jsonl") if "reward" in row]
    curve = [row["rewards/poem_format/mean"] for row in rows]
    assert len(curve) == 6
    assert first.estimate.mean == pytest.approx(curve[-1] - curve[0])
    assert weight.verdict == "agrees" and weight.estimate.mean == pytest.approx(3)
    assert meaning.verdict == "cannot be seen" and meaning.why
    page = (tmp_path / "claims.html").read_text()
    assert 'id="tones-rise"' in page and "data:image/png;base64," in page
    figures = json.loads((tmp_path / FIGURES).read_text())
    assert figures[0]["mean"] == first.estimate.mean
    state = tmp_path / "verse/thoughts-seed0" / STATE
    before = state.stat().st_mtime_ns
    again, *_ = reproduce(experiments, **settings)
    assert again.estimate == first.estimate
    assert state.stat().st_mtime_ns == before
    assert "0 jobs" in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_run_continues(tmp_path):
    experiment = small("verse", ("tones-rise",), start_steps=0)
    matrix = Matrix("verse", experiment, tmp_path, seeds=1, max_steps=6)
    [start, run] = matrix.jobs(experiment.claims)
    assert execute.execute([start], 1) == []
    run.begin()
    process = execute.begin_process(run)
    log = run.folder / "metrics.jsonl"
    while process.is_alive() and not any(row["step"] > 2 for row in read(log)):
        process.join(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not run.is_done
    assert execute.execute([start, run], 1) == []
    assert run.is_done
    assert f"Resuming from {run.folder}/checkpoint-" in (run.folder / execute.LOG).read_text()
    assert [row["step"] for row in read(log) if "reward" in row] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_what_follows_a_failed_job_is_not_begun(tmp_path, capsys):
    broken = Job("start", tmp_path / "start", [], "start", (None, "no/recipe.yaml", tmp_path, 0))
    after = Job("run", tmp_path / "run", [], "grpo_ext.train", ("none.yaml", []), needs=broken)
    assert execute.execute([broken, after], 2) == [broken, after]
    assert not after.folder.exists()
    assert "Traceback" in (broken.folder / execute.LOG).read_text()
    printed = " ".join(capsys.readouterr().out.split())
    assert "1/2 start failed; " in printed
    assert "2/2 run was not run, because start failed." in printed


def test_the_page_escapes_what_models_wrote(tmp_path):
    claim = load_experiment("countdown").claims[0]
    shown = Outcome(
        "countdown", claim, "agrees", by_seed={0: figure(0.5, 0.1, "<script>alert(1)</script>")}
    )
    shown.estimate = shown.by_seed[0].estimate
    page = write_page([shown], tmp_path, "a < b").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "a &lt; b" in page
    assert as_figure(shown.estimate) == "0.5 ± 0.1"


def test_details_name_the_seeds_that_have_a_figure():
    claim = load_experiment("countdown").claims[0]
    by_seed = {1: figure(0.5, 0.1, "a"), 2: figure(0.6, 0.1, "b")}
    assert Outcome("countdown", claim, "agrees", by_seed=by_seed).details == "seed 1: a; seed 2: b"
    alone = Outcome("countdown", claim, "agrees", by_seed={2: figure(0.6, 0.1, "b")})
    assert alone.details == "b"


def test_minutes_are_those_of_the_jobs_that_are_left(tmp_path):
    jobs = [Job(str(n), tmp_path / str(n), [], "start", (), seconds=60.0) for n in range(4)]
    assert execute.predicted_minutes(jobs, 2) == 2
    jobs[0].begin()
    jobs[0].record(done=True)
    assert execute.predicted_minutes(jobs, 1) == 3
    unknown = Job("u", tmp_path / "u", [], "grpo_ext.train", ())
    assert execute.predicted_minutes([*jobs, unknown], 1) is None


def test_the_map_has_a_cell_for_each_pair_of_values():
    from grpo_ext.observe.read_run import RunData
    from grpo_ext.reproduce import page

    [claim] = [c for c in load_experiment("countdown").claims if c.name == "rate-and-beta"]

    def run(rate, beta, level):
        metrics = [{"step": step, "reward": level} for step in range(1, 13)]
        return RunData("r", Path("r"), metrics, recipe={"learning_rate": rate, "beta": beta})

    runs = {f"{rate} {beta}": [run(rate, beta, rate + beta)] for rate in (1, 3) for beta in (0, 1)}
    outcome = Outcome("countdown", claim, "agrees", runs=runs)
    cells, rows, columns = page.table_of_map(outcome)
    assert cells.tolist() == [[1, 2], [3, 4]] and rows == [1, 3] and columns == [0, 1]
    assert base64.b64decode(page.picture_of(outcome)).startswith(b"\x89PNG")
    empty = Outcome("countdown", claim, "cannot be seen", runs={"r": [RunData("r", Path("r"), [])]})
    assert base64.b64decode(page.picture_of(empty)).startswith(b"\x89PNG")
