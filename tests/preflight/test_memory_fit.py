"""Whether a run fits into the memory of a GPU, and which changes of its recipe make it fit."""

from __future__ import annotations

import json

import pytest

from grpo_ext import load_recipe
from grpo_ext.cli.main import main
from grpo_ext.preflight.forecast import make_forecast
from grpo_ext.preflight.memory_fit import estimate_on_gpu, room_for_training

VALUES = {
    "model_name_or_path": "Qwen/Qwen2.5-1.5B",
    "dtype": "bfloat16",
    "num_problems": 40,
    "max_numbers": 3,
    "max_number": 9,
    "max_completion_length": 1024,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "max_steps": 2,
    "beta": 0.04,
    "gradient_checkpointing": True,
    "report_to": "none",
}
GIGABYTE = 10**9


def on_gpu(gigabytes, **settings):
    recipe = load_recipe(None, {**VALUES, **settings})
    return estimate_on_gpu(recipe, make_forecast(recipe), gigabytes)


@pytest.mark.parametrize(
    "gigabytes, settings, keys",
    [
        (80, {}, []),
        (24, {}, ["per_device_train_batch_size", "use_peft"]),
        (48, {"gradient_checkpointing": False}, ["gradient_checkpointing"]),
        (16, {}, ["use_peft"]),
        (6, {"dtype": "float32", "max_completion_length": 256}, ["per_device_train_batch_size"]),
        (1, {}, []),
    ],
)
def test_the_first_key_of_each_change_that_fits(gigabytes, settings, keys):
    estimate = on_gpu(gigabytes, **settings)
    named = [next(iter(remedy.change)) for remedy in estimate.remedies]
    assert named[: len(keys)] == keys
    assert bool(keys) == bool(named)
    assert estimate.fits == (gigabytes == 80)


@pytest.mark.parametrize("gigabytes", [6, 16, 24])
def test_a_recipe_with_a_named_change_fits_and_keeps_its_steps(gigabytes):
    before = make_forecast(load_recipe(None, VALUES)).plan
    estimate = on_gpu(gigabytes)
    assert estimate.remedies and not estimate.fits
    for remedy in estimate.remedies:
        changed = on_gpu(gigabytes, **remedy.change)
        assert changed.fits and changed.needed == remedy.needed
        plan = make_forecast(load_recipe(None, {**VALUES, **remedy.change})).plan
        assert plan.batch.completions == before.batch.completions
        assert plan.batch.completions_per_step == before.batch.completions_per_step


@pytest.mark.parametrize("micro_batch", [1, 32])
def test_the_longest_completion_is_that_of_the_recipes_micro_batches(micro_batch):
    sizes = {
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": 32 // micro_batch,
    }
    estimate = on_gpu(24, **sizes)
    assert on_gpu(24, **sizes, max_completion_length=estimate.longest).fits
    assert not on_gpu(24, **sizes, max_completion_length=estimate.longest + 1).fits
    assert (estimate.longest == estimate.longest_alone) == (micro_batch == 1)


def test_the_engine_of_vllm_takes_its_share_of_the_gpu_unless_it_sleeps():
    engine = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.25}
    assert room_for_training(load_recipe(None, VALUES).flat, 20 * GIGABYTE) == 17 * GIGABYTE
    beside = load_recipe(None, {**VALUES, **engine}).flat
    assert room_for_training(beside, 20 * GIGABYTE) == 12 * GIGABYTE
    asleep = beside.replaced(vllm_enable_sleep_mode=True)
    assert room_for_training(asleep, 20 * GIGABYTE) == 17 * GIGABYTE


def plan_on(path, gpu):
    return main(["plan", "--config", str(path), "--gpu", gpu])


def test_plan_says_first_whether_the_run_fits(tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(VALUES))
    assert plan_on(path, "3090") == 0
    named = capsys.readouterr().out
    assert named.startswith("a GPU of 24 GB ") and " does not fit: " in named.splitlines()[0]
    assert "would fit with `per_device_train_batch_size: " in named.splitlines()[1]
    assert "would fit with `use_peft: true` and " in named.splitlines()[2]
    assert plan_on(path, "24") == 0
    assert capsys.readouterr().out == named
    assert plan_on(path, "80") == 0
    assert " fits: " in capsys.readouterr().out.splitlines()[0]
    assert plan_on(path, "1") == 0
    small = capsys.readouterr().out
    assert (
        "would not fit even with smaller micro-batches" in small
        and "longest completion" not in small
    )


@pytest.mark.parametrize("gpu", ["titan", "0", "-24", "nan", "inf", "1e9", "24\x1b[31m"])
def test_what_is_no_gpu_is_refused(gpu, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        plan_on(tmp_path / "recipe.yaml", f"{gpu}")
    assert ended.value.code == 2
    assert "\x1b" not in capsys.readouterr().err
