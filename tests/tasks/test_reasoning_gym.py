"""The task `reasoning_gym`: generators by name, and rows that are the same in every process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import islice

import pytest

pytest.importorskip("reasoning_gym")

from grpo_ext import RecipeError, load_recipe
from grpo_ext.recipe.several_tasks import read_tasks
from grpo_ext.tasks import gym_rows
from grpo_ext.tasks.gym_rows import problems
from grpo_ext.tasks.reasoning_gym import Generator, ReasoningGym
from grpo_ext.train import make_trainer
from tests.support.recipe_sizes import SIZES

GIVEN = {"model_name_or_path": "m", "task": "reasoning_gym"}
# The order of these depends on the order of sets: other problems in each process.
BY_HASH = ["isomorphic_strings", "polynomial_multiplication", "ransom_note"]
FIVE = [
    {"name": "chain_sum", "weight": 2, "max_terms": 3, "max_digits": 1},
    "gcd",
    {"name": "word_sorting", "max_words": 4},
    {"name": "knights_knaves", "n_people": 2},
    {"name": "countdown", "max_numbers": 3, "min_numbers": 2},
]


@pytest.mark.parametrize(
    ("generators", "words"),
    [
        ([], "no Reasoning Gym generator is set"),
        (["chainsum"], "unknown generator 'chainsum'. Did you mean 'chain_sum'?"),
        (["composite"], "unknown generator 'composite'"),
        ([{"weight": 2}], "the entry {'weight': 2} has no name"),
        (
            [{"name": "chain_sum", "max_term": 3}],
            "chain_sum: unknown option 'max_term'. Did you mean 'max_terms'?",
        ),
        ([{"name": "chain_sum", "seed": 3}], "chain_sum: unknown option 'seed'"),
        ([{"name": "spell_backward", "data_file": "/etc/passwd"}], "unknown option 'data_file'"),
        (
            [{"name": "chain_sum", "max_terms": 1}],
            "chain_sum does not accept its options: max_terms must be >= min_terms",
        ),
        (
            ["gcd", {"name": "chain_sum", "weight": 0}],
            "chain_sum: weight must be a finite number above 0, but is 0",
        ),
        (
            ["gcd", {"name": "chain_sum", "weight": "2"}],
            "chain_sum: weight must be a finite number above 0, but is '2'",
        ),
        (["gcd", {"name": "gcd", "weight": 2}], "gcd is named more than once"),
        (
            {"chain_sum": {"max_terms": 4}},
            "Add the name of a generator, as in {name: chain_sum, max_terms: 4}.",
        ),
    ],
)
def test_what_is_wrong_with_generators_is_told_before_a_model_is_loaded(generators, words):
    with pytest.raises(RecipeError, match=re.escape(words)):
        load_recipe(None, {**GIVEN, "generators": generators})


def test_a_recipe_names_generators_with_weights_and_options():
    task = load_recipe(None, {**GIVEN, "generators": FIVE}).task
    assert task._generators[0] == Generator("chain_sum", 2, {"max_terms": 3, "max_digits": 1})
    assert task._generators[1] == Generator("gcd", 1, {})
    assert load_recipe(None, {**GIVEN, "generators": "gcd"}).task._generators == [
        Generator("gcd", 1, {})
    ]


def test_it_is_one_of_several_tasks():
    tasks, faults = read_tasks({"sums": {"task": "reasoning_gym", "generators": ["chain_sum"]}})
    assert not faults
    assert tasks["sums"].reward_specs[0] == {"name": "reasoning_gym", "weight": 1.0}
    _, [fault] = read_tasks({"sums": {"task": "reasoning_gym", "generators": ["chainsum"]}})
    assert "tasks: sums: generators: unknown generator 'chainsum'" in str(fault)


def test_five_generators_train_from_a_recipe_with_figures_for_each(tiny_folder, tmp_path):
    values = {
        **SIZES,
        "model_name_or_path": str(tiny_folder),
        "output_dir": str(tmp_path),
        "task": "reasoning_gym",
        "generators": FIVE,
        "num_problems": 40,
        "num_test_problems": 10,
        "num_generations": 4,
        "max_train_samples": None,
        "max_eval_samples": None,
        "max_steps": 5,
        "logging_steps": 1,
        "report_to": "none",
    }
    trainer = make_trainer(load_recipe(None, values))
    trainer.train()
    names = {name for entry in trainer.state.log_history for name in entry}
    for generator in ("chain_sum", "gcd", "word_sorting", "knights_knaves", "countdown"):
        assert f"tasks/{generator}/rewards/reasoning_gym/mean" in names
    for entry in trainer.state.log_history:
        assert entry.get("rewards/reasoning_gym/failed", 0) == 0


@pytest.mark.slow
def test_the_same_seed_makes_the_same_rows_in_every_process():
    code = (
        "import sys, hashlib; from grpo_ext.tasks.reasoning_gym import ReasoningGym\n"
        f"task = ReasoningGym({BY_HASH!r}, num_problems=30, task_seed=int(sys.argv[1]))\n"
        "rows = list(task.generate('train'))\n"
        "print(len(rows), hashlib.md5(repr(rows).encode()).hexdigest())"
    )

    def digest(seed: int, hash_seed: int) -> str:
        settings = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONHASHSEED": str(hash_seed),
        }
        words = [sys.executable, "-c", code, str(seed)]
        return subprocess.run(
            words, env=settings, capture_output=True, text=True, check=True
        ).stdout

    first = digest(0, 1)
    assert first.startswith("30 ")
    assert first == digest(0, 2)
    assert first != digest(1, 1)


def test_no_question_of_training_is_held_out_whatever_the_seed():
    generators = [
        {"name": "chain_sum", "max_terms": 2, "max_digits": 1},
        {"name": "gcd", "weight": 3, "max_value": 60},
    ]
    train = [
        list(ReasoningGym(generators, num_problems=300, task_seed=seed).generate("train"))
        for seed in (0, 1)
    ]
    test = list(ReasoningGym(generators, num_test_problems=60, task_seed=1).generate("test"))
    asked = [{row["question"] for row in rows} for rows in (*train, test)]
    assert list(map(len, asked)) == list(map(len, (*train, test)))
    assert asked[0] & asked[1]
    assert not (asked[0] | asked[1]) & asked[2]


def test_no_seed_of_training_makes_a_held_out_question(monkeypatch):
    """The seeds of every dataset that is made, of five task seeds."""
    make_dataset = gym_rows.make_dataset
    seeds: dict[bool, set[int]] = {True: set(), False: set()}

    def recorded(name, options, seed, size):
        seeds[is_test].update(range(seed, seed + size))
        return make_dataset(name, options, seed, size)

    monkeypatch.setattr(gym_rows, "make_dataset", recorded)
    for task_seed in range(5):
        for is_test in seeds:
            options = {"max_terms": 2, "max_digits": 2}
            made = list(islice(problems("chain_sum", options, task_seed, is_test), 300))
            assert len(made) == 300
    assert min(map(len, seeds.values())) >= 5 * 500
    assert not seeds[True] & seeds[False]


def test_weights_are_shares_and_a_generator_without_more_leaves_its_own_to_others():
    generators = [{"name": "gcd", "weight": 3}, "word_sorting"]
    rows = list(ReasoningGym(generators, num_problems=400).generate("train"))
    assert 250 < sum(row["task"] == "gcd" for row in rows) < 350
    few = [{"name": "gcd", "max_value": 4, "min_value": 1, "max_numbers": 2}, "lcm"]
    rows = list(ReasoningGym(few, num_problems=100).generate("train"))
    assert len(rows) == 100
    assert 0 < sum(row["task"] == "gcd" for row in rows) <= 16


def test_rows_become_prompts_and_a_generator_that_fails_is_told():
    task = ReasoningGym(["chain_sum"], num_problems=3)
    row = task.dataset("train")[0]
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][1]["content"] == row["question"]
    task._generators[0].options["max_terms"] = 1
    with pytest.raises(ValueError, match="exit code 1"):
        list(task.generate("train"))
    with pytest.raises(ValueError, match="not 'validation'"):
        list(task.generate("validation"))


def test_a_reader_that_wants_no_more_leaves_no_process():
    rows = ReasoningGym(["futoshiki"], num_problems=10_000).generate("train")
    assert next(rows)["task"] == "futoshiki"
    child = rows.gi_frame.f_locals["child"]
    rows.close()
    assert child.returncode is not None
