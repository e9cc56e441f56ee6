"""`grpo-ext bench` with a tiny model.

Its measurements, and settings that a recipe takes without a change of the objective.
"""

import json
import shutil

import pytest

from grpo_ext.bench.measure import Bench
from grpo_ext.bench.random_model import draw_lengths, has_weights
from grpo_ext.bench.search import Search, token_budgets
from grpo_ext.cli.bench import measurement_rows, training_lines
from grpo_ext.cli.main import main
from grpo_ext.preflight.forecast import known_config, model_size
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.memory import longest_completion
from tests.support.bench_words import SMALL, words
from tests.support.places import REPO


def test_the_settings_it_names_keep_the_completions_of_a_step(
    tiny_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    recipe = "countdown/tiny"
    given = words(tiny_folder, steps_per_generation=8, gradient_checkpointing="true")
    assert main(["bench", "--config", recipe, *given, "--json", "--minutes", "600"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == [] and not found["random_weights"]
    tried = found["training_phase"]
    assert {row["layout"] for row in tried} == {"auto", "chunks", "packed", "padded"}
    assert {row["gradient_checkpointing"] for row in tried} == {True, False}
    assert all(
        row["seconds"] > 0 and row["tokens_per_second"] > 0 and row["peak_gib"] > 0 for row in tried
    )
    assert all(
        found["as_it_stands"][f"time/{phase}"] > 0 for phase in ("generation", "rewards", "train")
    )
    overrides = [
        word
        for key, value in found["settings"].items()
        for word in (f"--{key}", json.dumps(value).strip('"'))
    ]
    old, new = (batch_of(load_recipe(recipe, [*given, *more]).flat, 1) for more in ([], overrides))
    assert (
        old.completions,
        old.completions_per_step,
        old.passes / old.gradient_accumulation_steps,
    ) == (
        new.completions,
        new.completions_per_step,
        new.passes / new.gradient_accumulation_steps,
    )


def test_a_model_without_weights_gets_random_ones_and_drawn_lengths(tiny_folder, tmp_path):
    shutil.copy(tiny_folder / "config.json", tmp_path)
    assert (
        has_weights(str(tiny_folder))
        and not has_weights(str(tmp_path))
        and not has_weights("nobody/no-such-model")
    )
    bench = Bench(load_recipe("countdown/tiny", words(tmp_path), 1))
    stands = bench.as_it_stands()
    lengths = list(map(len, bench.completions.completion_ids))
    assert (
        bench.random_weights
        and max(lengths) <= SMALL["max_completion_length"]
        and len({*lengths}) > 2
    )
    assert stands["time/generation"] > 0
    measured = bench.training_phase(
        {"layout": "padded", "max_tokens_per_micro_batch": None, "gradient_checkpointing": False}
    )
    assert (
        measured is not None and measured.seconds > 0 and measured.share > 0
    )  # although a random model gets no reward


@pytest.mark.parametrize(
    "recipe, more",
    [
        ("guess/tiny", {"max_completion_length": 24}),
        (
            "countdown/tiny",
            {
                "group_filter": "refill",
                "max_staleness": 1,
                "curriculum": "adaptive",
                "pass_rate_decay": 0.2,
            },
        ),
    ],
)
def test_episodes_and_options_of_other_options_do_not_matter_to_the_training_phase(
    tiny_folder, recipe, more
):
    bench = Bench(load_recipe(recipe, words(tiny_folder, **more), 1))
    bench.as_it_stands()
    assert bench.training_phase(
        {"layout": "chunks", "max_tokens_per_micro_batch": None, "gradient_checkpointing": False}
    )


def test_drawn_lengths_have_their_mean_and_one_in_a_hundred_at_the_limit():
    lengths = draw_lengths(5000, 4000)
    assert 0.97 * 1600 < sum(lengths) / 5000 < 1.03 * 1600
    assert 25 <= lengths.count(4000) <= 100 and min(lengths) >= 1 and max(lengths) == 4000


def test_a_model_of_unknown_shape_is_refused(tmp_path, capsys):
    assert main(["bench", "--config", "countdown/tiny", *words(tmp_path / "nowhere")]) == 2
    assert (
        "nowhere has no readable config.json on this machine, and grpo-ext does not know the "
        "model's shape. Pass `--model_" in capsys.readouterr().err
    )


def test_settings_that_do_not_fit_or_are_refused_are_results(tiny_folder, monkeypatch):
    bench = Bench(load_recipe("countdown/tiny", words(tiny_folder), 1))
    bench.as_it_stands()
    search = Search(bench)
    plain = bench.training_phase

    def training_phase(settings):
        if settings["layout"] == "chunks":
            return None  # needs memory that is not there
        if settings["layout"] == "padded":
            raise ValueError("no padding")
        return plain(settings)

    monkeypatch.setattr(bench, "training_phase", training_phase)
    lines = list(training_lines(search))
    assert search.best["layout"] not in ("chunks", "padded")
    assert search.refused_layouts == {"padded": "no padding"}
    outcomes = {}
    for row in measurement_rows(search):
        assert ("seconds" in row) + ("out_of_memory" in row) + ("refused" in row) == 1
        outcomes.setdefault(row["layout"], set()).add(row.get("refused", "seconds" in row))
        if row["max_tokens_per_micro_batch"]:
            outcomes["limited"] = True
    assert outcomes["chunks"] == {False} and outcomes["padded"] == {"no padding"}
    assert outcomes["packed"] == {True} and outcomes["limited"]
    ends = [line.rpartition("  ")[2].strip() for line in lines if line.startswith("padded")]
    assert ends and set(ends) == {"not supported"}


@pytest.mark.parametrize(
    ("name", "parameters"),  # as their cards say
    [
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen3-1.7B", 1_720_574_976),
        ("Qwen/Qwen3-4B", 4_022_468_096),
        ("google/gemma-3-1b-it", 999_885_952),
        ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
        ("meta-llama/Llama-3.2-3B", 3_212_749_824),
    ],
)
def test_shapes_that_are_known_by_name(name, parameters):
    recipe = load_recipe("countdown/tiny", ["--model_name_or_path", name])
    assert model_size(recipe.flat, recipe.model).parameters == parameters


def test_other_names_have_no_known_shape():
    assert known_config("Qwen/Qwen2.5") is None and known_config("runs/mine") is None


def test_limits_of_a_micro_batch_lie_between_the_longest_row_and_all_rows():
    assert (
        token_budgets([100] * 100) == [2048, 4096, 8192]
        and token_budgets([100]) == []
        and token_budgets([300, 10]) == []
    )


@pytest.mark.parametrize(
    ("offered", "more"), [(80e9, {}), (80e9, {"use_vllm": True}), (40e9, {"beta": 0.04})]
)
def test_the_longest_completion_is_the_last_that_fits(offered, more):
    values = {
        "model_name_or_path": "Qwen/Qwen2.5-1.5B",
        "per_device_train_batch_size": 16,
        "gradient_checkpointing": True,
    }
    given = [
        word
        for key, value in {**values, **more}.items()
        for word in (f"--{key}", str(value).lower())
    ]
    given[1] = values["model_name_or_path"]
    recipe = load_recipe("countdown/tiny", given)
    size = model_size(recipe.flat, recipe.model)
    batch = batch_of(recipe.flat, 1)
    longest = longest_completion(size, recipe.flat, batch, int(offered), prompt=200)
    tokens = longest + 200
    # by hand: float32 weights, gradients and two states of AdamW; one completion's activations,
    # which in float32 take twice the bytes of the formula; a cache for all
    weights = size.parameters * 4 * (5 if recipe.flat["beta"] else 4)
    kept = 2 * 1536 * tokens * (34 + 2 * 28)
    cache = 0 if more.get("use_vllm") else 2 * 28 * 256 * 2 * batch.completions * tokens
    assert (
        longest > 100
        and weights + kept + cache <= offered < weights + (kept + cache) * (tokens + 1) / tokens
    )


GUESS = {"name": "guess", "turns": 2, "turn_tokens": 4, "credit": "turn"}


@pytest.mark.parametrize(
    "rows",
    [
        {"task": "guess", "environment": GUESS, "reward_funcs": ["environment"]},
        {"tasks": {"guess": {"environment": GUESS, "reward_funcs": ["environment"]}}},
        {
            "task": "environment",
            "environment": {"name": f"{REPO}/tests/support/worlds.py:Counting", "turn_tokens": 4},
            "reward_funcs": ["environment"],
        },
    ],
    ids=["environment", "tasks", "rows"],
)
def test_recorded_episodes_are_trained_on_without_their_environment(rows, tiny_folder, tmp_path):
    settings = {
        "model_name_or_path": str(tiny_folder),
        "output_dir": str(tmp_path),
        "max_steps": 2,
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "max_completion_length": 60,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
    }
    bench = Bench(load_recipe(None, {**settings, **rows}, 1))
    bench.as_it_stands()
    measured = bench.training_phase({})
    assert measured is not None and measured.tokens_per_second > 0
