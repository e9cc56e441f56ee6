"""Reasoning Gym: rows that are the same everywhere and score as their generators say, and answers
that cannot break out.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.support.hostile_texts import hostile_completions
from tests.support.places import REPO
from tests.support.registry_state import registry_as_before

pytest.importorskip("reasoning_gym")

from grpo_ext import RecipeError, load_recipe
from grpo_ext.common.modules import load_file
from grpo_ext.rewards import build
from grpo_ext.rewards.example_checks import check_reward
from grpo_ext.rewards.pool import RewardPool
from grpo_ext.rewards.reward_specs import load_plugin

FILE = REPO / "examples" / "reasoning_gym" / "problems.py"
with registry_as_before():
    gym = load_file(FILE)
EVALUATED = gym.EVALUATED
ReasoningGym = gym.ReasoningGym
problems = gym.problems
score = gym.score

GENERATORS = (
    "arc_1d",
    "base_conversion",
    "basic_arithmetic",
    "binary_matrix",
    "caesar_cipher",
    "chain_sum",
    "codeio",
    "countdown",
    "gcd",
    "gsm_symbolic",
    "isomorphic_strings",
    "knights_knaves",
    "n_queens",
    "polynomial_multiplication",
    "ransom_note",
    "rearc",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
    "syllogism",
    "tower_of_hanoi",
    "word_sorting",
)
# The order of these depends on the order of sets: other problems in each process.
BY_HASH = ["isomorphic_strings", "polynomial_multiplication", "ransom_note"]
GIVEN = {"model_name_or_path": "m", "task": f"{FILE}:ReasoningGym"}


@pytest.fixture(autouse=True)
def registered():
    """The reward, in the catalogue of each test."""
    load_plugin(str(FILE))


def completion(answer: str) -> str:
    return f"<think>\nwork\n</think>\n<answer>\n{answer}\n</answer>"


def made(name: str, count: int = 1, **options) -> list[dict]:
    return list(islice(problems(name, options, 0, test=False), count))


@pytest.mark.parametrize(
    ("generators", "words"),
    [
        (["chainsum"], "unknown generator 'chainsum'. Did you mean 'chain_sum'?"),
        ("composite", "unknown generator 'composite'"),
        (
            {"chain_sum": {"max_term": 3}},
            "chain_sum: unknown option 'max_term'. Did you mean 'max_terms'?",
        ),
        ({"chain_sum": {"seed": 3}}, "chain_sum: unknown option 'seed'"),
        ({"chain_sum": {"max_terms": 1}}, "chain_sum: max_terms must be >= min_terms"),
        ({"gcd": None, "chain_sum": {"weight": 0}}, "chain_sum: weight must be above 0"),
        ({"chain_sum": 3}, "generators is a list"),
    ],
)
def test_what_nobody_knows_is_told_before_a_model_is_loaded(generators, words):
    with pytest.raises(RecipeError, match=re.escape(words)):
        load_recipe(None, {**GIVEN, "generators": generators})


def test_a_recipe_names_generators_in_three_forms():
    for generators in ("gcd", ["gcd"], {"gcd": {"weight": 3}}):
        [(name, (_, options))] = load_recipe(
            None, {**GIVEN, "generators": generators}
        ).task._mix.items()
        assert (name, options) == ("gcd", {})


@pytest.mark.parametrize("name", GENERATORS)
def test_the_own_answer_scores_one_and_another_less(name):
    rows = made(name, 12)
    reward = build("reasoning_gym")
    entries = [row["entry"] for row in rows]
    assert reward(completions=[completion(row["answer"]) for row in rows], entry=entries) == [
        1.0
    ] * len(rows)
    for other in ("", "no idea", "-987654321"):
        assert max(reward(completions=[completion(other)] * len(rows), entry=entries)) < 1.0
    assert reward(completions=[row["answer"] for row in rows], entry=entries) == [0.0] * len(rows)


def test_an_entry_scores_as_the_one_that_was_made():
    """Also where JSON would not do: arc_agi compares tuples."""
    import reasoning_gym

    for name in ("arc_agi", "rearc", "codeio", "knights_knaves"):
        dataset = reasoning_gym.create_dataset(name, seed=5, size=6)
        [row, *_] = made(name)
        options = ast.literal_eval(row["entry"])["options"]
        for entry in map(dataset.__getitem__, range(6)):
            kept = {
                key: value
                for key, value in entry["metadata"].items()
                if key in ast.literal_eval(row["entry"])["metadata"]
            }
            shipped = {"generator": name, "options": options, **entry, "metadata": kept}
            for answer in (entry["answer"], entry["answer"][::-1], entry["answer"][:-1]):
                assert score(completion(answer), shipped) == pytest.approx(
                    dataset.score_answer(answer.strip(), entry)
                )


@pytest.mark.slow
def test_the_same_seed_makes_the_same_rows_in_every_process():
    code = (
        f"import sys, hashlib; from grpo_ext.tasks import get_task_class; ReasoningGym = "
        f"get_task_class({GIVEN['task']!r})\n"
        f"rows = list(ReasoningGym({BY_HASH!r}, num_problems=30, "
        f"task_seed=int(sys.argv[1])).generate('train'))\n"
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
    assert first.startswith("30 ") and first == digest(0, 2) != digest(1, 1)


def test_no_question_of_training_is_held_out_whatever_the_seed():
    mix = {"chain_sum": {"max_terms": 2, "max_digits": 1}, "gcd": {"weight": 3, "max_value": 60}}
    train = [
        list(ReasoningGym(mix, num_problems=300, task_seed=seed).generate("train"))
        for seed in (0, 1)
    ]
    test = list(ReasoningGym(mix, num_test_problems=60, task_seed=1).generate("test"))
    asked = [{row["question"] for row in rows} for rows in (*train, test)]
    assert list(map(len, asked)) == list(map(len, (*train, test)))
    assert asked[0] & asked[1] and not (asked[0] | asked[1]) & asked[2]


def test_no_seed_of_training_makes_a_held_out_question(monkeypatch):
    """The seeds of every data set that is made, of five task seeds."""
    import reasoning_gym

    create = reasoning_gym.create_dataset
    seeds = {True: set(), False: set()}

    def recorded(name, *, seed, size, **options):
        seeds[held_out].update(range(seed, seed + size))
        return create(name, seed=seed, size=size, **options)

    monkeypatch.setattr(reasoning_gym, "create_dataset", recorded)
    for task_seed in range(5):
        for held_out in seeds:
            assert (
                len(
                    list(
                        islice(
                            problems(
                                "chain_sum", {"max_terms": 2, "max_digits": 2}, task_seed, held_out
                            ),
                            300,
                        )
                    )
                )
                == 300
            )
    assert min(map(len, seeds.values())) >= 5 * 500 and not seeds[True] & seeds[False]


def test_weights_are_shares_and_a_generator_without_more_leaves_its_own_to_others():
    rows = list(
        ReasoningGym({"gcd": {"weight": 3}, "word_sorting": None}, num_problems=400).generate(
            "train"
        )
    )
    assert 250 < sum(row["generator"] == "gcd" for row in rows) < 350
    few = {"gcd": {"max_value": 4, "min_value": 1, "max_numbers": 2}, "lcm": None}
    rows = list(ReasoningGym(few, num_problems=100).generate("train"))
    assert len(rows) == 100 and 0 < sum(row["generator"] == "gcd" for row in rows) <= 16


def test_rows_become_prompts_and_a_generator_that_fails_is_told():
    task = ReasoningGym(["chain_sum"], num_problems=3)
    row = task.dataset("train")[0]
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][1]["content"] == row["question"]
    task._mix["chain_sum"][1]["max_terms"] = 1
    with pytest.raises(ValueError, match="exit code 1"):
        list(task.generate("train"))
    with pytest.raises(ValueError, match="not 'validation'"):
        list(task.generate("validation"))


def test_a_reader_that_wants_no_more_leaves_no_process():
    rows = ReasoningGym(["futoshiki"], num_problems=10_000).generate("train")
    assert next(rows)["generator"] == "futoshiki"
    child = rows.gi_frame.f_locals["child"]
    rows.close()
    assert child.returncode is not None


def test_every_scorer_that_evaluates_an_answer_is_known():
    """Read from the scorers' source; two more evaluate parts of the row alone."""
    from reasoning_gym.factory import DATASETS

    found = set()
    for name, (cls, _) in DATASETS.items():
        source = inspect.getsource(cls.score_answer)
        if re.search(r"\b(?:eval|exec|sympify|parse_expr)\(", source):
            found.add(name)
    assert found == {*EVALUATED, "number_sorting"}


ATTACKS = (
    "__import__('pathlib').Path({path!r}).touch()",
    "[__import__('pathlib').Path({path!r}).touch()]",
    "'__import__(\"pathlib\").Path({path!r}).touch()'",
    "S('__import__(\"pathlib\").Path({path!r}).touch()')",
    "(lambda: open({path!r}, 'w'))()",
    "x.__class__.__init__.__globals__['__builtins__']['open']({path!r}, 'w')",
    "eval(chr(111)+'pen({path!r}, chr(119))')",
    "ｅｖａｌ('open({path!r}, \"w\")')",
    "f\"{{open({path!r}, 'w')}}\"",
)


@pytest.mark.parametrize("name", EVALUATED)
def test_an_answer_runs_no_code(name, tmp_path):
    """Each attack touches a file where it is evaluated: by the scorer itself at least one does."""
    [row] = made(name)
    path = tmp_path / "touched"
    attacks = [attack.format(path=str(path)) for attack in ATTACKS]
    assert (
        max(
            build("reasoning_gym")(
                completions=list(map(completion, attacks)), entry=[row["entry"]] * len(attacks)
            )
        )
        < 1
    )
    assert not path.exists()

    import reasoning_gym

    dataset = reasoning_gym.create_dataset(name, seed=0, size=1)
    for attack in attacks:
        try:
            dataset.score_answer(attack, ast.literal_eval(row["entry"]))
        except Exception:
            continue
    assert Path(path).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["countdown", "n_queens", "prime_factorization", "simple_integration", "tower_of_hanoi"]
)
def test_hostile_completions_are_scored_within_the_deadline(name):
    [row] = made(name)
    plain = hostile_completions()[::12]
    answers = [
        "9**9**9**9",
        "9**99**99",
        "((((9**99)**99)**99)**99)**99",
        "x**99*" * 300 + "x",
        "[1]*10**10",
        "2 × 2 × x",
        "1e999",
    ]
    completions = [*plain, *map(completion, [*plain, *answers])]
    with RewardPool(1, timeout=30.0) as pool:
        scores, errors = pool.score(
            build("reasoning_gym"),
            {"completions": completions, "entry": [row["entry"]] * len(completions)},
        )
    assert all(score is None or 0 <= score < 1 for score in scores)
    assert all("TimeoutError" in error or "MemoryError" in error for error in errors.values()), (
        errors
    )
    assert len(errors) <= 4, errors


def test_the_reward_holds_to_its_examples():
    assert check_reward("reasoning_gym") == ([], 3)
