"""The simulated step against a loop over tokens, its limits, and what `plan` prints of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from conftest import REPO
from hypothesis import given
from hypothesis import strategies as st
from test_forecast import VALUES as SMALL

from benchmarks.placements_published import table
from grpo_ext import load_recipe
from grpo_ext.cli.main import main
from grpo_ext.preflight import placements
from grpo_ext.preflight.forecast import make_forecast
from grpo_ext.preflight.placements import (
    Speeds,
    Workload,
    drawn_lengths,
    generation_seconds,
    simulate,
    training_seconds,
)
from grpo_ext.preflight.speeds import (
    CARDS,
    COMPUTE,
    GENERATION,
    LINK,
    READ,
    STARTING,
    by_card,
    by_run,
    fitted,
)

SPEEDS = Speeds(
    step=0.01, row=0.001, token=0.002, update=0.3, reward=0.2, sync=0.1, switch=0.5, slots=4
)
VALUES = {**SMALL, "max_completion_length": 50, "per_device_train_batch_size": 32}


def token_by_token(lengths: list[int], speeds: Speeds, engines: int) -> float:
    """Each engine decodes one token of each of its rows a step, and takes the next row when a place is free."""
    waiting = [[] for _ in range(engines)]
    for i, length in enumerate(lengths):
        waiting[i % engines].append(length)
    clocks = []
    for queue in waiting:
        clock, active = 0.0, []
        while queue or active:
            while queue and len(active) < speeds.slots:
                active.append(queue.pop(0))
            clock += speeds.step + speeds.row * len(active)
            active = [left - 1 for left in active if left > 1]
        clocks.append(clock)
    return max(clocks)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(1, 8),
    st.integers(1, 3),
)
def test_a_generation_takes_what_a_loop_over_its_tokens_takes(lengths, engines, slots, gpus):
    speeds = replace(SPEEDS, slots=slots, gpus=gpus)
    found = generation_seconds(Workload(lengths), speeds, engines * gpus)
    assert found == pytest.approx(token_by_token(lengths, speeds, engines))


def test_one_row_and_equal_rows():
    assert generation_seconds(Workload([7]), SPEEDS, 3) == pytest.approx(7 * 0.011)
    assert generation_seconds(Workload([5] * 12), SPEEDS, 3) == pytest.approx(
        5 * (0.01 + 4 * 0.001)
    )
    assert generation_seconds(Workload([5] * 24), SPEEDS, 3) == pytest.approx(
        2 * 5 * (0.01 + 4 * 0.001)
    )  # two waves


def test_training_divides_tokens_but_no_completion():
    work = Workload([10, 20, 30], prompt_tokens=5, updates=2)
    assert training_seconds(work, SPEEDS, 1) == pytest.approx(75 * 0.002 + 0.6)
    assert training_seconds(work, SPEEDS, 2) == pytest.approx(37.5 * 0.002 + 0.6)
    assert training_seconds(work, SPEEDS, 100) == pytest.approx(35 * 0.002 + 0.6)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 4), st.integers(0, 9))
def test_the_placements_of_one_workload(lengths, gpus, more):
    speeds, total = replace(SPEEDS, gpus=gpus), gpus + 1 + more
    found = simulate(Workload(lengths), speeds, total)
    assert [x.whole for x in found] == sorted(x.whole for x in found)
    [colocate] = [x for x in found if x.name == "colocate"]
    assert colocate.whole == pytest.approx(colocate.generation + colocate.training + 0.7)
    splits = range(gpus, total, gpus)
    for name in ("in turn", "overlap"):
        assert sorted(x.sample for x in found if x.name == name) == list(splits)
    by_split = {(x.name, x.sample): x for x in found}
    for sample in splits:
        turn, over = by_split["in turn", sample], by_split["overlap", sample]
        assert (
            turn.sample + turn.train == total
            and turn.generation == over.generation
            and turn.training == over.training
        )
        assert turn.whole == pytest.approx(0.1 + turn.generation + 0.2 + turn.training)
        assert over.whole == pytest.approx(0.1 + max(over.generation, 0.2 + over.training))
        assert turn.whole / over.whole <= 2
        for x in (turn, over):  # either side works, waits, or, the trainer, sends its weights
            assert (
                x.whole
                == pytest.approx(x.generation + x.sampler_waits)
                == pytest.approx(0.3 + x.training + x.trainer_waits)
            )


def test_without_a_tail_and_switching_nothing_beats_colocate():
    """All GPUs work all the time, so that no split is faster; a long row is what overlap hides."""
    speeds = Speeds(step=0.0, row=0.001, token=0.002)
    even = simulate(Workload([10] * 64), speeds, 8)
    assert even[0].name == "colocate" and even[0].whole == pytest.approx(64 * 10 * 0.003 / 8)
    tail = simulate(Workload([10] * 511 + [1000]), replace(speeds, step=0.005), 8)
    assert tail[0].name == "overlap"


def test_two_hundred_and_fifty_six_gpus_are_a_generation_a_split(monkeypatch):
    seen = []
    whole = placements.generation_seconds
    monkeypatch.setattr(
        placements, "generation_seconds", lambda *given: seen.append(given[2]) or whole(*given)
    )
    found = simulate(Workload(drawn_lengths(8192, 3000, 20000)), replace(SPEEDS, slots=256), 256)
    assert len(found) == 1 + 2 * 255 and len(seen) == 256


def test_an_engine_larger_than_all_gpus_is_refused():
    with pytest.raises(ValueError, match="An engine has 8 GPUs"):
        simulate(Workload([1]), replace(SPEEDS, gpus=8), 4)


@pytest.mark.parametrize("mean, limit", [(500, 4000), (1500, 4000), (3000, 4000)])
def test_drawn_lengths_have_their_mean_and_one_in_a_hundred_at_the_limit(mean, limit):
    found = drawn_lengths(2000, mean, limit)
    assert found == drawn_lengths(2000, mean, limit) != drawn_lengths(2000, mean, limit, seed=1)
    assert 0.94 * mean < sum(found) / 2000 < 1.01 * mean  # the cut takes a little
    assert 10 <= sum(n == limit for n in found) <= 30 and min(found) >= 1
    assert drawn_lengths(3, limit, limit) == [limit] * 3


def test_fitted_finds_the_two_parts():
    first, second = [10, 20, 30, 40], [5, 1, 4, 2]
    assert fitted(
        first, second, [2 * a + 3 * b for a, b in zip(first, second, strict=True)]
    ) == pytest.approx((2, 3))
    assert fitted(first, second, [2 * a for a in first]) == pytest.approx((2, 0), abs=1e-9)
    assert fitted([4, 4], [10, 10], [8, 8]) == pytest.approx(
        (1, 0.4)
    )  # cannot be told apart: half each
    a, b = fitted(first, second, [2 * a - b for a, b in zip(first, second, strict=True)])
    assert b == 0 and a * sum(first) == pytest.approx(
        sum(2 * a - b for a, b in zip(first, second, strict=True))
    )


def recipe_file(tmp_path, model, **more):
    path = tmp_path / "recipe.yaml"
    values = {**VALUES, "model_name_or_path": str(model), **more}
    path.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in values.items()))
    return str(path)


def test_an_estimate_counts_bytes_and_operations(tiny_folder):
    recipe = load_recipe(
        None,
        {**VALUES, "model_name_or_path": str(tiny_folder), "use_vllm": True, "vllm_mode": "server"},
    )
    forecast = make_forecast(recipe)
    work, speeds = by_card("h100", recipe.flat, forecast)
    rate, bandwidth, _, slots = CARDS["h100"]
    weights = forecast.size.parameters
    assert speeds.step == pytest.approx(STARTING + 4 * weights / (READ * bandwidth))
    assert speeds.token == pytest.approx((6 + 2) * weights / (COMPUTE * rate))
    assert (speeds.sync, speeds.switch) == pytest.approx((4 * weights / LINK, 8 * weights / LINK))
    assert speeds.slots == slots and speeds.gpus == 1
    assert (
        len(work.lengths) == 32
        and max(work.lengths) <= 50
        and work.prompt_tokens == forecast.prompt_tokens
    )
    context = work.prompt_tokens + sum(n * n for n in work.lengths) / sum(work.lengths) / 2
    cache = 2 * 2 * forecast.size.num_hidden_layers * forecast.size.kv_width
    assert speeds.row == pytest.approx(
        cache * context / (READ * bandwidth) + 2 * weights / (COMPUTE * rate)
    )
    twice = load_recipe(
        None, {**VALUES, "model_name_or_path": str(tiny_folder), "num_iterations": 2, "beta": 0.1}
    )
    assert by_card("h100", twice.flat, forecast)[1].token == pytest.approx(
        16 * weights / (COMPUTE * rate)
    )


def test_the_table_of_published_runs_is_what_the_benchmark_prints():
    page = (REPO / "docs" / "overlap.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in page


def test_plan_prints_a_table_and_names_the_fastest(tiny_folder, tmp_path, capsys):
    path = recipe_file(tmp_path, tiny_folder)
    assert main(["plan", "--config", path]) == 0
    plain = capsys.readouterr().out
    assert main(["plan", "--config", path, "--gpus", "8", "--gpu", "h100"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(plain) and "by a data sheet, an estimate" in out
    names = [line[:8].strip() for line in out[len(plain) :].splitlines()[2:-1]]
    assert [names.count(name) for name in ("colocate", "in turn", "overlap")] == [1, 1, 5]
    assert main(["plan", "--config", path, "--gpus", "8", "--gpu", "h100", "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)["placements"]
    assert f"{first['name']} is fastest, " in out
    assert len(others) == 2 * 7 and first["whole"] == min(x["whole"] for x in [first, *others])
    assert main(["plan", "--config", path, "--json"]) == 0
    assert "placements" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words, told",
    [
        (["--gpus", "8"], "--gpus N, and --gpu CARD or --run FOLDER"),
        (["--gpu", "h100"], "--gpus N, and --gpu CARD or --run FOLDER"),
        (
            ["--gpus", "8", "--gpu", "h100", "--run", "x"],
            "--gpus N, and --gpu CARD or --run FOLDER",
        ),
        (["--gpus", "8", "--gpu", "cray"], "--gpu needs one of 4090, a100, h20"),
        (["--gpus", "8", "--run", "nowhere"], "nowhere holds no run"),
        (
            ["--gpus", "8", "--gpu", "h100", "--model_name_or_path", "nowhere"],
            "a model's config that is here",
        ),
    ],
)
def test_what_plan_refuses(tiny_folder, tmp_path, capsys, words, told):
    assert main(["plan", "--config", recipe_file(tmp_path, tiny_folder), *words]) == 2
    assert told in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["plan", "--config", "c", "--gpus", "1"])
    assert left.value.code == 2


def logged(folder, rows):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


@pytest.mark.parametrize("overlap", [False, True])
def test_speeds_of_a_log(tiny_folder, tmp_path, overlap):
    """A log made by known speeds gives them back."""
    recipe = load_recipe(None, {**VALUES, "model_name_or_path": str(tiny_folder)})
    forecast = make_forecast(recipe)
    rows, clock = [], 1e9
    for step, (mean, longest) in enumerate([(20, 50), (35, 48), (12, 44), (28, 50), (15, 30)], 1):
        sampled, trained = 0.004 * longest + 0.0002 * 32 * mean, 3.0
        clock += max(sampled, trained) if overlap else sampled + trained
        row = {"step": step, "time": clock, GENERATION: sampled}
        row |= {"completions/mean_length": mean, "completions/max_length": longest}
        rows.append(
            {**row, "overlap/age": 1.0, "time/waiting": max(0.0, sampled - trained)}
            if overlap
            else row
        )
    work, speeds = by_run(logged(tmp_path / "run", rows), recipe.flat, forecast)
    assert (speeds.step, speeds.row) == pytest.approx((0.004, 0.0002), rel=1e-6)
    assert training_seconds(work, speeds, 1) == pytest.approx(3.0, rel=0.02)
    assert len(work.lengths) == 32 and max(work.lengths) <= 50
    with pytest.raises(
        ValueError,
        match=f"lacks what --run reads: three lines with {GENERATION}, completions/mean_length",
    ):
        by_run(logged(tmp_path / "run", rows[:2]), recipe.flat, forecast)


@pytest.mark.parametrize("more", [{}, {"sampler": "process", "overlap": "one_step"}])
def test_a_run_logs_what_plan_reads(tiny_folder, tmp_path, capsys, more):
    from grpo_ext.train import make_trainer

    path = recipe_file(
        tmp_path,
        tiny_folder,
        output_dir=str(tmp_path),
        max_steps=5,
        logging_steps=1,
        save_strategy="no",
        **more,
    )
    make_trainer(load_recipe(path)).train()
    capsys.readouterr()
    assert main(["plan", "--config", path, "--gpus", "2", "--run", str(tmp_path)]) == 0
    assert f"seconds a generation by {tmp_path}" in capsys.readouterr().out
