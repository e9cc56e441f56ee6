"""The files of claims: their schema, what they refer to, and the verdict of a figure."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from grpo_ext.cli.reproduce import NAMES
from grpo_ext.common.estimates import Estimate, mean_over_runs
from grpo_ext.recipe.load import load_recipe
from grpo_ext.reproduce.claims import (
    EXPERIMENTS,
    SCALES,
    Claim,
    Experiment,
    Range,
    load_experiment,
)
from grpo_ext.reproduce.command import selected
from grpo_ext.reproduce.measures import MEASURES
from grpo_ext.reproduce.outcomes import obstacle, out_of_scale
from grpo_ext.reproduce.runs import Matrix
from grpo_ext.reproduce.starts import STYLES, as_words

CLAIM = {
    "name": "a",
    "claim": "It rises.",
    "place": "results",
    "published": "no figure",
    "measure": "end",
    "figure": "the end",
    "expected": {"at_least": 0},
}


def interval(low, high):
    return Estimate((low + high) / 2, (high - low) / 4, low, high, 3)


def test_there_are_at_least_25_claims_with_names_of_their_own():
    names = [claim.name for name in EXPERIMENTS for claim in load_experiment(name).claims]
    assert len(names) >= 25
    assert NAMES == EXPERIMENTS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_measure_exists_and_takes_the_arguments(name):
    import inspect

    for claim in load_experiment(name).claims:
        inspect.signature(MEASURES[claim.measure]).bind([], **claim.arguments)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_run_is_a_recipe_and_is_used_by_a_claim(name, tmp_path):
    experiment = load_experiment(name)
    matrix = Matrix(name, experiment, tmp_path, seeds=1)
    used = set()
    for claim in experiment.claims:
        used |= set(claim.runs)
        if obstacle(matrix, claim) or out_of_scale(claim, "tiny"):
            continue
        for run in claim.runs:
            path, words = matrix.run(run, 0).arguments
            recipe = load_recipe(path, words)
            assert recipe.get("output_dir") == str(tmp_path / name / f"{run}-seed0")
            assert recipe.get("save_steps") == 20
    assert used == set(experiment.runs)
    assert {run.start for run in experiment.runs.values()} == set(experiment.starts)
    assert {start.demonstrations for start in experiment.starts.values()} <= set(STYLES)


def test_a_wrong_file_is_refused():
    good = {"recipe": "r", "usual_start": "s", "runs": {}, "claims": [CLAIM]}
    good["starts"] = {"s": {"demo": "poem", "count": 1, "max_steps": 1, "seconds": 1}}
    Experiment.model_validate(good)
    for key, value in (
        ("usual_start", "t"),
        ("runs", {"a": {"start": "t", "seconds": 1}}),
        ("claims", [CLAIM, CLAIM]),
        ("claims", [CLAIM | {"runs": ["b"]}]),
        ("claims", [CLAIM | {"expected": {}}]),
        ("claims", [CLAIM | {"scale": "full"}]),  # without `why`
        ("claims", [CLAIM | {"mesure": "end"}]),
    ):
        with pytest.raises(ValidationError):
            Experiment.model_validate(good | {key: value})


@pytest.mark.parametrize(
    "low, high, verdict",
    [
        (0.21, 0.29, "agrees"),
        (0.2, 0.3, "agrees"),
        (0.1, 0.19, "does not"),
        (0.31, 0.4, "does not"),
        (0.1, 0.25, "cannot be seen"),
        (0.25, 0.35, "cannot be seen"),
        (0.0, 1.0, "cannot be seen"),
    ],
)
def test_the_whole_interval_decides(low, high, verdict):
    assert Range(at_least=0.2, at_most=0.3).verdict(interval(low, high)) == verdict


def test_one_bound_may_be_missing_and_without_an_interval_there_is_no_verdict():
    assert Range(at_least=0).verdict(interval(0.1, 9)) == "agrees"
    assert Range(at_most=0).verdict(interval(0.1, 9)) == "does not"
    assert Range(at_least=0).verdict(Estimate(5, None, None, None, 1)) == "cannot be seen"


def test_the_mean_over_seeds_has_the_interval_of_students_t():
    estimate = mean_over_runs([Estimate(value, 0.1, None, None, 1) for value in (1.0, 2.0, 3.0)])
    assert estimate.mean == 2
    assert estimate.error == pytest.approx(1 / 3**0.5)
    assert estimate.high - estimate.mean == pytest.approx(4.302653 / 3**0.5)


def test_seeds_that_agree_by_chance_have_the_error_of_their_own():
    estimate = mean_over_runs([Estimate(0.5, 0.3, None, None, 1)] * 3)
    assert estimate.error == pytest.approx(0.3 / 3**0.5)


def test_a_single_seed_keeps_its_interval_and_three_alarms_are_no_proof():
    one = Estimate(0.5, 0.1, 0.3, 0.7, 9)
    assert mean_over_runs([one]) is one
    three = mean_over_runs([Estimate(1.0, None, None, None, 1)] * 3)
    assert three.mean == 1 and three.low < 0.5


def test_scales_are_ordered():
    claim = Claim.model_validate(CLAIM | {"scale": "pretrained", "why": "it is small."})
    assert [out_of_scale(claim, scale) for scale in SCALES] == [True, False, False]


def test_claims_are_chosen_by_name_and_a_misspelt_name_is_told():
    chosen = selected(["countdown", "verse"], ["tones-rise"])
    assert {name: [claim.name for claim in some.claims] for name, some in chosen.items()} == {
        "verse": ["tones-rise"]
    }
    with pytest.raises(ValueError, match="format-sooner"):
        selected(["countdown"], ["format-soner"])


def test_runs_are_shared_by_claims_and_starts_by_runs(tmp_path):
    experiment = load_experiment("countdown")
    matrix = Matrix("countdown", experiment, tmp_path, seeds=2)
    jobs = matrix.jobs([claim for claim in experiment.claims if claim.scale == "tiny"])
    folders = [job.folder for job in jobs]
    assert len(set(folders)) == len(folders)
    assert sum(job.module == "start" for job in jobs) == 2
    assert len(jobs) == 2 * (1 + len(experiment.runs))
    for job in jobs:
        assert job.needs is None or folders.index(job.needs.folder) < folders.index(job.folder)


def test_a_factor_multiplies_the_value_of_the_recipe(tmp_path):
    experiment = load_experiment("countdown")
    matrix = Matrix("countdown", experiment, tmp_path, seeds=1)
    settings = matrix.settings("rate_6_beta_40", 0)
    assert settings["learning_rate"] == pytest.approx(2.4e-3)
    assert settings["beta"] == pytest.approx(0.04)
    other = Matrix("countdown", experiment, tmp_path, 1, "countdown/qwen2.5-3b")
    settings = other.settings("rate_6_beta_40", 1)
    assert settings["learning_rate"] == pytest.approx(3e-6)
    assert settings["seed"] == 43 and "max_steps" not in settings
    assert other.run("published", 0).needs is None


def test_another_recipe_has_one_model(tmp_path):
    experiment = load_experiment("verse")
    claims = {claim.name: claim for claim in experiment.claims}
    tiny = Matrix("verse", experiment, tmp_path, 1)
    other = Matrix("verse", experiment, tmp_path, 1, "poem/qwen2.5-7b-lora")
    assert obstacle(tiny, claims["sft-first"]) == ""
    assert "one model" in obstacle(other, claims["sft-first"])
    assert obstacle(other, claims["tones-rise"]) == ""
    uneven = Matrix("verse", experiment, tmp_path, 1, "poem/qwen2.5-7b-lora")
    uneven.overrides = ["--gradient_accumulation_steps", "3"]
    assert "group_8 cannot be built" in obstacle(uneven, claims["group-size-inverse"])


def test_a_changed_setting_begins_a_run_anew_and_other_files_stay(tmp_path):
    experiment = load_experiment("verse")
    job = Matrix("verse", experiment, tmp_path, 1).run("thoughts", 0)
    job.begin()
    (job.folder / "metrics.jsonl").write_text("")
    job.begin()  # as after a kill
    assert (job.folder / "metrics.jsonl").exists()
    job.record(done=True, seconds=3.0)
    assert job.is_done
    shorter = Matrix("verse", experiment, tmp_path, 1, max_steps=3).run("thoughts", 0)
    assert not shorter.is_done
    shorter.begin()
    assert not (job.folder / "metrics.jsonl").exists()
    foreign = Matrix("verse", experiment, tmp_path, 1).run("line_only", 0)
    foreign.folder.mkdir(parents=True)
    (foreign.folder / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="files that this command did not write"):
        foreign.begin()
    assert (foreign.folder / "thesis.txt").exists()


def test_values_become_words_of_a_command_line():
    words = as_words({"a": [1.0, 2.0], "b": "text", "c": None, "d": False, "e": {"f": 1}})
    assert words == [
        "--a",
        "[1.0, 2.0]",
        "--b",
        "text",
        "--c",
        "null",
        "--d",
        "false",
        "--e",
        '{"f": 1}',
    ]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_published_recipe_can_be_changed_as_every_run_asks(name, tmp_path):
    recipes = {
        "countdown": "countdown/qwen2.5-3b",
        "gsm8k": "gsm8k/qwen2.5-1.5b",
        "verse": "poem/qwen2.5-7b-lora",
    }
    experiment = load_experiment(name)
    matrix = Matrix(name, experiment, tmp_path, 1, recipes[name])
    blocked = {claim.name: obstacle(matrix, claim) for claim in experiment.claims}
    told = {claim for claim, why in blocked.items() if why}
    # GSM8K's recipe has 32 completions a step, fewer than a group of 64
    assert (
        told
        == {
            "countdown": set(),
            "gsm8k": {"deepseek-math-learns"},
            "verse": {
                "sft-first",
                "tones-without-thoughts",
                "rhyme-without-thoughts",
                "fewer-steps-without-thoughts",
                "less-time-without-thoughts",
                "faster-steps-without-thoughts",
            },
        }[name]
    )
